// The gradients with which the splits of a cut sequence begin backward in time: what each split
// adds by itself, made side by side (run_key_sums), is joined. Internal to this folder.
//
// Gradients of means and of log normalizers before a split are those after it times exp(z_before -
// z_after), the part of the memory after it that the one before it is, plus the split's own.
#pragma once

#include "attention/primitives/slot_attention/cuda/fast_backward.h"

namespace linnet::cuda::slot_attention_fast::backward_detail {

class Ends {
 public:
  // Room for them; none for a single split.
  Ends(const Backward& call, int64_t splits);
  // Where splits leave what they add.
  SplitSums sums() const;
  // `normalizers` of Starts, before each split.
  void join(const double* normalizers) const;
  // A call of some slots that begins with them.
  void give(Backward& call, BackwardWork& work) const;

 private:
  struct Gradients {
    Tensor keys, values, sums;
  };
  const Backward& call_;
  int64_t splits_;
  Gradients own_, after_;
};

}  // namespace linnet::cuda::slot_attention_fast::backward_detail
