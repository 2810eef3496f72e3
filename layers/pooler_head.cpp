#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/layout.h"
#include "autograd/pooling.h"
#include "layers/dense.h"
#include "layers/head_makers.h"
#include "layers/site_dropout.h"

namespace linnet {
namespace {

class PoolerHead final : public ExampleHead {
 public:
  explicit PoolerHead(const HeadParts& parts)
      : dropout_(parts.config.dropout),
        last_(parts.config.kind == "encoder_decoder"),
        pooler_(parts.model.child("head"), "pooler", parts.config.init, parts.config.width,
                parts.config.width),
        classes_(parts.model.child("head"), "classes", parts.config.init, parts.config.width,
                 parts.sizes.classes) {}

  Variable logits(const Variable& hidden, const ModelInput& input) const override {
    const int64_t rows = hidden.size(0), width = hidden.size(2);
    const Variable token = last_ ? reshape(last_pool(hidden, input.key_mask), {rows, 1, width})
                                 : slice(hidden, 1, 0, 1);
    const Variable pooled =
        dropout(tanh(pooler_(dropout(token, dropout_spec(dropout_, "head.first_token", input)))),
                dropout_spec(dropout_, "head.pooler", input));
    return classes_(reshape(pooled, {rows, width}));
  }

 private:
  double dropout_;
  bool last_;  // reads the last valid token: the first of a decoder sees no other
  Dense pooler_, classes_;
};

}  // namespace

Head make_pooler_head(const HeadParts& parts) {
  return std::make_unique<PoolerHead>(parts);
}

}  // namespace linnet
