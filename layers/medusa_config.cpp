// The section `model.medusa`.
#include <cmath>

#include "layers/medusa.h"

namespace linnet {

void MedusaConfig::describe(ConfigDescription<MedusaConfig>& d) {
  d.field("heads", &MedusaConfig::heads,
          "heads beside the model's own; head k predicts the token k places after the next one; 0: "
          "none")
      .range(0, 16);
  d.field("weight", &MedusaConfig::weight,
          "head k has this to the power k as its weight in the loss")
      .above(0)
      .at_most(1);
}

void MedusaConfig::validate(const ConfigNode& at) const {
  if (heads > 0 || weight == MedusaConfig().weight) return;
  throw located_error(at.location_of("weight"), Cause{ErrorCode::conflict, "weight"},
                      "model.medusa.weight has a meaning only with model.medusa.heads; remove it");
}

double MedusaConfig::weight_of(int64_t head) const {
  return std::pow(weight, static_cast<double>(head));
}

}  // namespace linnet
