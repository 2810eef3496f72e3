#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/layout.h"
#include "layers/dense.h"
#include "layers/head_makers.h"
#include "layers/site_dropout.h"

namespace linnet {
namespace {

class PoolerHead final : public ExampleHead {
 public:
  explicit PoolerHead(const HeadParts& parts)
      : dropout_(parts.config.dropout),
        pooler_(parts.model.child("head"), "pooler", parts.config.init, parts.config.width,
                parts.config.width),
        classes_(parts.model.child("head"), "classes", parts.config.init, parts.config.width,
                 parts.sizes.classes) {}

  Variable logits(const Variable& hidden, const ModelInput& input) const override {
    const Variable first =
        dropout(slice(hidden, 1, 0, 1), dropout_spec(dropout_, "head.first_token", input));
    const Variable pooled =
        dropout(tanh(pooler_(first)), dropout_spec(dropout_, "head.pooler", input));
    return classes_(reshape(pooled, {hidden.size(0), hidden.size(2)}));
  }

 private:
  double dropout_;
  Dense pooler_, classes_;
};

}  // namespace

Head make_pooler_head(const HeadParts& parts) {
  return std::make_unique<PoolerHead>(parts);
}

}  // namespace linnet
