//! The program `wgformer`.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
