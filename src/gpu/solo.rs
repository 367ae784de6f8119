//! One kernel by itself, over bytes from the host: for tests, and for following a plan step by step. Around each buffer
//! lie guard zones, and what the kernel is to write holds a poison before; both say afterwards what was written where.

use super::memory::{Part, Ring, read_one};
use super::{ALIGN_BYTES, Gpu, entry};
use crate::kernel::{Access, Kernel};
use crate::{Error, Result, TensorType};
use std::num::NonZeroU64;

/// What fills unwritten memory, four bytes at a time: as f32 a NaN, as u32 an id beyond any tensor.
pub const POISON: u32 = 0x7fc0_dead;

/// What fills the guard zones of buffers that are read, and of those that are written: another NaN, and a number. A NaN
/// comes out of an operation as it went in, so what a kernel computes from one of the three must not look like another,
/// and a kernel that updates in place must not leave the zone as it was.
const ZONES: [u32; 2] = [0x7fc0_beef, 0x3fc0_babe];

/// Bytes of the zone before a buffer, and of the one after it.
pub const GUARD_BYTES: usize = ALIGN_BYTES as usize;

/// How a shader sees a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SoloKind {
    /// `var<uniform>`.
    Uniform,
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    Write,
}

/// A binding of a shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SoloBinding {
    /// `@group`.
    pub group: u32,
    /// `@binding`.
    pub binding: u32,
    /// How the shader sees it.
    pub kind: SoloKind,
}

/// A buffer to bind.
#[derive(Clone, Debug)]
pub struct SoloBuffer {
    /// Where it is bound.
    pub at: SoloBinding,
    /// Its bytes, a multiple of 4: before the run, and for [`SoloKind::Write`] after it.
    pub bytes: Vec<u8>,
}

/// Memory outside of a buffer that a run has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trespass {
    /// Where the buffer is bound.
    pub at: SoloBinding,
    /// The first byte changed, counted from the buffer's first one: negative before it.
    pub byte: i64,
}

/// A pipeline of one kernel.
#[derive(Clone, Debug)]
pub struct Solo {
    gpu: Gpu,
    label: String,
    pipeline: wgpu::ComputePipeline,
    /// By group.
    layouts: Vec<wgpu::BindGroupLayout>,
    /// Whether group 1 is the parameter block of a plan, which has a dynamic offset.
    plan: bool,
    /// Whether the guard zone after a buffer is a part of what is bound: a write beyond the end is not dropped then, as
    /// some drivers do with writes outside of a binding. Not for shaders that ask for the length of an array.
    bound_guards: bool,
    zones: [u32; 2],
}

impl Gpu {
    /// A kernel of a plan; shares its pipeline with the executors of this device.
    ///
    /// # Errors
    /// When the kernel does not compile, or the device fails.
    pub fn solo(&self, kernel: &Kernel) -> Result<Solo> {
        let pipeline = self.pipelines(std::slice::from_ref(kernel))?.0.remove(0);
        Ok(Solo {
            gpu: self.clone(),
            label: kernel.name.clone(),
            pipeline: pipeline.raw,
            layouts: vec![pipeline.storage, self.shared.params_layout.clone()],
            plan: true,
            bound_guards: !kernel.parts.iter().any(|p| p.contains("arrayLength")),
            zones: ZONES,
        })
    }

    /// A kernel from any WGSL text, with values for its `override` constants by name.
    ///
    /// # Errors
    /// When the text does not compile or does not have these bindings, or the device fails.
    pub fn solo_wgsl(
        &self,
        wgsl: &str,
        entry_point: &str,
        bindings: &[SoloBinding],
        constants: &[(&str, f64)],
    ) -> Result<Solo> {
        let shared = &self.shared;
        let groups = bindings.iter().map(|b| b.group + 1).max().unwrap_or(0);
        let allowed = shared.device.limits().max_bind_groups;
        if groups > allowed {
            let (needed, allowed) = (groups as u64, allowed as u64);
            return Err(Error::Limit {
                limit: "max_bind_groups",
                needed,
                allowed,
                tensor: entry_point.into(),
            });
        }
        let (layouts, pipeline) = shared.scoped(&format_args!("kernel {entry_point}"), || {
            let layouts: Vec<_> = (0..groups)
                .map(|group| {
                    let entries: Vec<_> = bindings
                        .iter()
                        .filter(|b| b.group == group)
                        .map(|b| entry(b.binding, b.kind.layout(), false, None))
                        .collect();
                    let descriptor = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
                    shared.device.create_bind_group_layout(&descriptor)
                })
                .collect();
            let list: Vec<_> = layouts.iter().map(Some).collect();
            let layout = shared.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &list,
                immediate_size: 0,
            });
            let source = wgpu::ShaderSource::Wgsl(wgsl.into());
            let descriptor = wgpu::ShaderModuleDescriptor { label: Some(entry_point), source };
            let pipeline = shared.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(entry_point),
                layout: Some(&layout),
                module: &shared.device.create_shader_module(descriptor),
                entry_point: Some(entry_point),
                compilation_options: wgpu::PipelineCompilationOptions {
                    constants,
                    zero_initialize_workgroup_memory: true,
                },
                cache: None,
            });
            (layouts, pipeline)
        })?;
        Ok(Solo {
            gpu: self.clone(),
            label: entry_point.to_string(),
            pipeline,
            layouts,
            plan: false,
            bound_guards: !wgsl.contains("arrayLength"),
            zones: ZONES,
        })
    }
}

impl SoloKind {
    fn layout(self) -> wgpu::BufferBindingType {
        match self {
            SoloKind::Uniform => wgpu::BufferBindingType::Uniform,
            SoloKind::Read => wgpu::BufferBindingType::Storage { read_only: true },
            SoloKind::Write => wgpu::BufferBindingType::Storage { read_only: false },
        }
    }

    /// What a plan's access means here.
    pub fn of(access: Access) -> SoloKind {
        match access {
            Access::Read => SoloKind::Read,
            Access::Write | Access::Update => SoloKind::Write,
        }
    }
}

impl Solo {
    /// The same with the guard zone after each storage buffer as a part of what is bound, or not. It is, unless the text
    /// asks for the length of an array; a text that subtracts the zone from the length may have it too.
    pub fn bind_guards(mut self, bound: bool) -> Solo {
        self.bound_guards = bound;
        self
    }

    /// The same with this word in all guard zones: where the results differ by it, the kernel reads them.
    pub fn fill_guards(mut self, word: u32) -> Solo {
        self.zones = [word; 2];
        self
    }

    /// A guard zone of a buffer of this kind.
    fn zone(&self, kind: SoloKind) -> Vec<u8> {
        let word = self.zones[(kind == SoloKind::Write) as usize];
        bytemuck::cast_slice(&[word; GUARD_BYTES / 4]).to_vec()
    }
}

/// Bytes of poison.
pub fn poison(bytes: usize) -> Vec<u8> {
    bytemuck::cast_slice(&vec![POISON; bytes.div_ceil(4)]).to_vec()
}

impl Solo {
    /// Uploads the buffers, runs the dispatches one after another, each in a submission of its own, and reads the
    /// written buffers back. Before each dispatch its bytes, where it has any, replace those of the buffer of this number.
    ///
    /// # Errors
    /// When a buffer does not fit its binding, a dispatch is too large, or the device fails.
    pub fn run(&self, buffers: &mut [SoloBuffer], dispatches: &[SoloDispatch]) -> Result<Vec<Trespass>> {
        let shared = &self.gpu.shared;
        let mut raw = Vec::with_capacity(buffers.len());
        for b in buffers.iter_mut() {
            b.bytes.resize(b.bytes.len().next_multiple_of(4).max(4), 0);
            let usage = match b.at.kind {
                SoloKind::Uniform => wgpu::BufferUsages::UNIFORM,
                SoloKind::Read | SoloKind::Write => wgpu::BufferUsages::STORAGE,
            };
            let usage = usage | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
            let zone = self.zone(b.at.kind);
            let bytes = [&zone[..], &b.bytes, &zone].concat();
            let buffer = shared.buffer(&self.label, bytes.len() as u64, usage)?;
            shared.scoped(&self.label, || shared.queue.write_buffer(&buffer.raw, 0, &bytes))?;
            raw.push(buffer);
        }
        let groups = shared.scoped(&self.label, || {
            let of_group = |(group, layout): (usize, &wgpu::BindGroupLayout)| {
                let entries: Vec<_> = buffers
                    .iter()
                    .zip(&raw)
                    .filter(|(b, _)| b.at.group as usize == group)
                    .map(|(b, raw)| {
                        let storage = b.at.kind != SoloKind::Uniform;
                        let size = match (self.plan && !storage, self.bound_guards && storage) {
                            (true, _) => ALIGN_BYTES,
                            (_, true) => (b.bytes.len() + GUARD_BYTES) as u64,
                            (_, false) => b.bytes.len() as u64,
                        };
                        let buffer = wgpu::BufferBinding {
                            buffer: &raw.raw,
                            offset: GUARD_BYTES as u64,
                            size: NonZeroU64::new(size),
                        };
                        wgpu::BindGroupEntry {
                            binding: b.at.binding,
                            resource: wgpu::BindingResource::Buffer(buffer),
                        }
                    })
                    .collect();
                // A plan's kernel without parameters has nothing at group 1.
                if entries.is_empty() && self.plan && group == 1 {
                    return None;
                }
                Some(shared.device.create_bind_group(&wgpu::BindGroupDescriptor {
                    label: Some(&self.label),
                    layout,
                    entries: &entries,
                }))
            };
            self.layouts.iter().enumerate().map(of_group).collect::<Vec<_>>()
        })?;
        let spare = match groups.last() {
            Some(None) => Some(self.spare_params()?),
            _ => None,
        };
        for d in dispatches {
            shared.scoped(&self.label, || {
                if let Some((number, bytes)) = &d.replace {
                    shared.queue.write_buffer(&raw[*number].raw, GUARD_BYTES as u64, bytes);
                }
                let mut encoder = shared.device.create_command_encoder(&Default::default());
                let mut pass = encoder.begin_compute_pass(&Default::default());
                pass.set_pipeline(&self.pipeline);
                for (i, group) in groups.iter().enumerate() {
                    let offsets: &[u32] = if self.plan && i == 1 { &[0] } else { &[] };
                    pass.set_bind_group(i as u32, group.as_ref().or(spare.as_ref()), offsets);
                }
                let [x, y, z] = d.groups;
                pass.dispatch_workgroups(x, y, z);
                drop(pass);
                shared.queue.submit([encoder.finish()]);
            })?;
        }
        let mut trespasses = Vec::new();
        let zone = self.zone(SoloKind::Write);
        for (b, raw) in buffers.iter_mut().zip(&raw).filter(|(b, _)| b.at.kind == SoloKind::Write) {
            let words = raw.bytes as usize / 4;
            let part = Part::of(raw, 0, TensorType::u32([words]));
            let all = read_one(shared, &Ring::default(), raw.bytes, part)?;
            let all = all.bytes();
            let (before, rest) = all.split_at(GUARD_BYTES);
            let (inside, after) = rest.split_at(b.bytes.len());
            for (bytes, start) in [(before, -(GUARD_BYTES as i64)), (after, b.bytes.len() as i64)] {
                if let Some(i) = bytes.iter().zip(&zone).position(|(x, y)| x != y) {
                    trespasses.push(Trespass { at: b.at, byte: start + i as i64 });
                }
            }
            b.bytes.copy_from_slice(inside);
        }
        Ok(trespasses)
    }

    /// A parameter block for a kernel of a plan that has none: it does not look at it.
    fn spare_params(&self) -> Result<wgpu::BindGroup> {
        let shared = &self.gpu.shared;
        let block = shared.buffer(&self.label, ALIGN_BYTES, wgpu::BufferUsages::UNIFORM)?;
        shared.scoped(&self.label, || {
            shared.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(&self.label),
                layout: &shared.params_layout,
                entries: &[wgpu::BindGroupEntry { binding: 0, resource: block.raw.as_entire_binding() }],
            })
        })
    }
}

/// One dispatch of a [`Solo`].
#[derive(Clone, Debug)]
pub struct SoloDispatch {
    /// Workgroups in x, y, z.
    pub groups: [u32; 3],
    /// New content for the buffer of this number before the dispatch.
    pub replace: Option<(usize, Vec<u8>)>,
}
