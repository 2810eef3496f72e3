#include "autograd/loss.h"
#include "core/gemm.h"
#include "layers/block.h"
#include "layers/dense.h"
#include "layers/head_makers.h"

namespace linnet {
namespace {

class MaskedLmHead final : public TokenHead {
 public:
  explicit MaskedLmHead(const HeadParts& parts)
      : activation_(activation_from_name(
            parts.config.activation == "swiglu" ? "gelu" : parts.config.activation)),
        dense_(parts.model.child("head"), "dense", parts.config.init, parts.config.width,
               parts.config.width),
        norm_(parts.config, parts.model.child("head").child("norm")),
        table_(parts.token_table),
        bias_(parts.model.child("head").parameter("bias", {parts.sizes.vocabulary},
                                                  init_constant(0))) {}

  Variable loss(const Variable& hidden, const Tensor& targets) const override {
    return output_cross_entropy(transform(hidden), table_, targets, bias_);
  }
  Tensor losses(const Tensor& hidden, const Tensor& targets) const override {
    const NoGrad off;
    return output_token_losses(transform(Variable(hidden)).value(), table_.value(), targets,
                               bias_.value());
  }
  Tensor logits(const Tensor& hidden) const override {
    const NoGrad off;
    const DType type = hidden.dtype() == DType::bf16 ? DType::f32 : hidden.dtype();
    Tensor result = Tensor::empty({hidden.size(0), table_.size(0)}, type, hidden.device());
    gemm_bias(transform(Variable(hidden)).value(), Transpose::no, table_.value(), Transpose::yes,
              result, bias_.value().to(type));
    return result;
  }

 private:
  Variable transform(const Variable& hidden) const { return norm_(dense_(hidden, activation_)); }

  Activation activation_;  // of the feed-forward, as BERT has it
  Dense dense_;
  Norm norm_;
  Variable table_, bias_;  // [V,E], [V]
};

}  // namespace

Head make_masked_lm_head(const HeadParts& parts) {
  return std::make_unique<MaskedLmHead>(parts);
}

}  // namespace linnet
