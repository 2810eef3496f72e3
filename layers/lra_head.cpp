#include "autograd/arithmetic.h"
#include "autograd/layout.h"
#include "autograd/pooling.h"
#include "layers/dense.h"
#include "layers/head_makers.h"

namespace linnet {
namespace {

class LraHead final : public ExampleHead {
 public:
  explicit LraHead(const HeadParts& parts)
      : first_token_(parts.config.pooling == "cls"),
        by_length_(parts.config.mean_by_length),
        rows_(parts.sizes.rows_per_example),
        width_(parts.config.width),
        hidden_(parts.model.child("head"), "hidden", parts.config.init, features(), inner(parts)),
        classes_(parts.model.child("head"), "classes", parts.config.init, inner(parts),
                 parts.sizes.classes) {}

  Variable logits(const Variable& hidden, const ModelInput& input) const override {
    Variable pooled = first_token_ ? gather_time(hidden, Tensor::zeros({hidden.size(0)}, DType::i32,
                                                                       hidden.value().device()))
                                   : mean_pool(hidden, input.key_mask, by_length_);
    if (rows_ == 2) {
      // Rows 2i and 2i+1 side by side: [N, 2 E].
      const Variable pairs = reshape(pooled, {pooled.size(0) / 2, 2 * width_});
      const Variable a = slice(pairs, 1, 0, width_), b = slice(pairs, 1, width_, 2 * width_);
      pooled = concatenate({pairs, multiply(a, b), subtract(a, b)}, 1);
    }
    return classes_(hidden_(pooled, Activation::relu));
  }

 private:
  int64_t features() const { return rows_ == 2 ? 4 * width_ : width_; }
  static int64_t inner(const HeadParts& parts) {
    return parts.config.head_width > 0 ? parts.config.head_width : parts.config.width;
  }

  bool first_token_, by_length_;
  int64_t rows_, width_;
  Dense hidden_, classes_;
};

}  // namespace

Head make_lra_head(const HeadParts& parts) {
  return std::make_unique<LraHead>(parts);
}

}  // namespace linnet
