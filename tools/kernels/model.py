"""The time of a kernel by its instructions and bytes.

A warp issues an instruction every WARP_CYCLES cycles, whatever else there is, and a scheduler one a
cycle; a multiprocessor has 4 schedulers. So where a scheduler has w warps, an instruction of each of
them takes max(WARP_CYCLES, w) cycles. A wave of blocks takes as long as its blocks; what is not issue
overlaps with it, and the largest of four times is the kernel's.

WARP_CYCLES is the one constant that was fitted: public.tsv has the kernels of others that fixed it, with
their published times; none of linnet's did. What a copy and mma.sync reach of the data sheet's rates was
measured by others on such chips (4.3 of 4.8 TB/s; 63 to 65 % of the tensor cores' rate).
"""

import math
from dataclasses import dataclass

WARP_CYCLES = 5.0
COPY_SHARE = 0.9  # of a memory's rate is what a copy reaches
MMA_SHARE = 0.63  # of the tensor cores' rate is what mma.sync reaches on Hopper


@dataclass(frozen=True)
class Device:
    multiprocessors: int
    clock: float  # Hz
    bytes_per_s: float
    tensor_flops: float  # dense, of bf16


H100 = Device(132, 1.755e9, 3.35e12, 989e12)
H200 = Device(132, 1.755e9, 4.8e12, 989e12)
DEVICES = {"H100": H100, "H200": H200}
REGISTERS, SHARED_BYTES, THREADS, BLOCKS = 65536, 233472, 2048, 32  # of a multiprocessor of sm_90
RESERVED_BYTES = 1024  # of shared memory, for each block


@dataclass
class Work:
    """A launch. Instructions, cycles and FLOPs are a warp's, from the beginning of its block to the end."""

    blocks: int
    threads: int
    registers: int
    shared: int
    instructions: float
    bytes: float
    shared_cycles: float = 0
    flops: float = 0
    warpgroup: bool = False  # its products are wgmma's


@dataclass
class Prediction:
    blocks_per_sm: int
    waves: float
    seconds: dict  # of each resource

    @property
    def total(self):
        return max(self.seconds.values())

    @property
    def bound_by(self):
        return max(self.seconds, key=self.seconds.get)


def blocks_per_sm(work):
    warps = math.ceil(work.threads / 32)
    allotted = math.ceil(work.registers * 32 / 256) * 256 * warps
    limits = (
        REGISTERS // allotted,
        SHARED_BYTES // (work.shared + RESERVED_BYTES),
        THREADS // (32 * warps),
        BLOCKS,
    )
    return max(1, min(limits))


def predict(work, device):
    resident = blocks_per_sm(work)
    waves = work.blocks / (device.multiprocessors * resident)
    warps = math.ceil(work.threads / 32)
    each = math.ceil(work.blocks / device.multiprocessors)  # blocks that the busiest multiprocessor gets
    for_scheduler = warps * min(resident, each) / 4
    issue = math.ceil(waves) * work.instructions * max(WARP_CYCLES, for_scheduler) / device.clock
    rate = device.tensor_flops * (1 if work.warpgroup else MMA_SHARE)
    return Prediction(
        resident,
        waves,
        {
            "memory": work.bytes / (COPY_SHARE * device.bytes_per_s),
            "issue": issue,
            "shared memory": each * warps * work.shared_cycles / device.clock,
            "tensor cores": work.blocks * warps * work.flops / rate,
        },
    )
