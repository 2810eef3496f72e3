// Blocks that steps of generation free and take again, so that a step calls the heap not at all
// once one like it has run.
#pragma once

#include <cstddef>

namespace linnet {

// While it lives, what its thread frees (operator delete, host tensors of less than 64 KiB) waits
// for what it allocates next: blocks of powers of two, so that what grows with the text fits for
// long, from 16 bytes to 1 MiB, of which 16 MiB wait at most. It begins with some of up to 32 KiB,
// 1.5 MiB in all, for steps that take more than those before them, and gives a larger block where
// none of a size waits. They go back to the heap with it. One inside of another does nothing.
// Neither does any under sanitizers or without glibc.
class StepMemory {
 public:
  StepMemory();
  ~StepMemory();
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

 private:
  bool outermost_;
};

// For allocators: a block of at least `bytes`, 64-byte aligned where `aligned`, of a size that will
// serve a class again, or nullptr where no StepMemory of this thread lives, the block would be
// too large, or there is no memory. The heap's free() takes it back.
void* take_step_block(size_t bytes, bool aligned) noexcept;
// Keeps a block of the heap for later; false where it does not. `aligned`: to 64 bytes.
bool keep_step_block(void* block, bool aligned) noexcept;

}  // namespace linnet
