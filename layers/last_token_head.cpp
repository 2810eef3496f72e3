#include "autograd/linear.h"
#include "autograd/pooling.h"
#include "layers/head_makers.h"
#include "layers/token_mixer.h"

namespace linnet {
namespace {

class LastTokenHead final : public ExampleHead {
 public:
  explicit LastTokenHead(const HeadParts& parts)
      : weight_(parts.model.child("head").parameter(
            "classes.weight", {parts.sizes.classes, parts.config.width},
            projection_init(parts.config.init, 1, parts.config.width, parts.sizes.classes))) {}

  Variable logits(const Variable& hidden, const ModelInput& input) const override {
    return linear(last_pool(hidden, input.key_mask), weight_);
  }

 private:
  Variable weight_;
};

}  // namespace

Head make_last_token_head(const HeadParts& parts) {
  return std::make_unique<LastTokenHead>(parts);
}

}  // namespace linnet
