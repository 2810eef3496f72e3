#include "autograd/loss.h"
#include "core/gemm.h"
#include "layers/head_makers.h"
#include "layers/token_mixer.h"

namespace linnet {
namespace {

class TableHead final : public TokenHead {
 public:
  explicit TableHead(Variable table) : table_(std::move(table)) {}
  Variable loss(const Variable& hidden, const Tensor& targets) const override {
    return output_cross_entropy(hidden, table_, targets);
  }
  Tensor losses(const Tensor& hidden, const Tensor& targets) const override {
    return output_token_losses(hidden, table_.value(), targets);
  }
  Tensor logits(const Tensor& hidden) const override {
    const DType type = hidden.dtype() == DType::bf16 ? DType::f32 : hidden.dtype();
    Tensor result = Tensor::empty({hidden.size(0), table_.size(0)}, type, hidden.device());
    gemm(hidden, Transpose::no, table_.value(), Transpose::yes, result);
    return result;
  }

 private:
  Variable table_;  // [V,E]
};

}  // namespace

Head make_table_head(const HeadParts& parts) {
  const ModelConfig& config = parts.config;
  if (config.tie_embeddings) return std::make_unique<TableHead>(parts.token_table);
  const int64_t vocabulary = parts.sizes.vocabulary;
  return std::make_unique<TableHead>(
      parts.model.parameter("output.weight", {vocabulary, config.width},
                            projection_init(config.init, 1, config.width, vocabulary)));
}

}  // namespace linnet
