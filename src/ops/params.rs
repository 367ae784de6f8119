//! The parameter blocks of kernels.

/// Defines a parameter block as WGSL's struct reads it: a `#[repr(C)]` struct of 4-byte fields that starts as zeros, its
/// table of fields (`FIELDS`, for [`Kernel::params`](crate::kernel::Kernel::params)) and its bytes (`bytes`, for
/// [`Dispatch::params`](crate::kernel::Dispatch::params)).
macro_rules! params {
    (struct $block:ident { $($field:ident: $ty:ident),* $(,)? }) => {
        #[repr(C)]
        #[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
        struct $block { $($field: $ty),* }

        impl $block {
            const FIELDS: &'static [$crate::kernel::Field] = &[$($crate::kernel::Field {
                name: stringify!($field),
                ty: stringify!($ty),
                offset: std::mem::offset_of!($block, $field),
            }),*];

            fn bytes(&self) -> Vec<u8> {
                bytemuck::bytes_of(self).to_vec()
            }
        }
    };
}

pub(super) use params;
