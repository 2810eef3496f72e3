// Adaptive softmax: the frequent words and one row for each tail are predicted together; a word of
// a tail is predicted among those of its tail besides.
#include <memory>
#include <vector>

#include "autograd/arithmetic.h"
#include "autograd/dropout.h"
#include "autograd/indexing.h"
#include "autograd/layout.h"
#include "autograd/loss.h"
#include "autograd/products.h"
#include "autograd/reductions.h"
#include "core/gemm.h"
#include "layers/adaptive_tables.h"
#include "layers/head_makers.h"
#include "layers/site_dropout.h"

namespace linnet {
namespace {

// Logits [N,words] in f32 of bf16, so that close ones stay apart.
Variable wide_logits(const Tensor& hidden, const Tensor& table) {
  const DType type = hidden.dtype() == DType::bf16 ? DType::f32 : hidden.dtype();
  Tensor result = Tensor::empty({hidden.size(0), table.size(0)}, type, hidden.device());
  gemm(hidden, Transpose::no, table, Transpose::yes, result);
  return Variable(result);
}

Variable log_softmax(const Variable& logits) {
  return subtract(logits, logsumexp(logits, 1));
}

class AdaptiveHead final : public TokenHead {
 public:
  AdaptiveHead(std::shared_ptr<const AdaptiveTables> tables, double dropout, bool compat)
      : tables_(std::move(tables)), dropout_(dropout), compat_(compat) {}

  Variable loss(const Variable& hidden, const Tensor& targets) const override {
    return loss(hidden, targets, ModelInput());
  }

  Variable loss(const Variable& hidden, const Tensor& targets,
                const ModelInput& input) const override {
    const Device device = hidden.value().device();
    BandTensors tails = input.target_tails;
    Tensor head = input.head_targets;
    if (!head.defined()) {
      const TargetBands gathered = target_bands(tables_->bands(), ids_on_host(targets), compat_);
      tails = to_device(gathered.tails, device);
      head = Tensor::from(gathered.head, targets.shape(), device);
    }
    const Variable z = dropout(hidden, dropout_spec(dropout_, "head", input));
    std::vector<Variable> losses{output_cross_entropy(z, tables_->table(0), head)};
    for (int64_t band = 1; band < tables_->bands().count(); ++band) {
      Variable y = into_tail(z, band);
      y = dropout(y, dropout_spec(dropout_, "head.tail." + std::to_string(band), input));
      y = gather(flat(y), of_band(tails.rows, tails.sizes, band - 1));
      losses.push_back(
          output_cross_entropy(y, tables_->table(band), of_band(tails.ids, tails.sizes, band - 1)));
    }
    return sum_of_losses(losses);
  }

  Tensor losses(const Tensor& hidden, const Tensor& targets) const override {
    const NoGrad off;
    const Device device = hidden.device();
    const TargetBands gathered =
        target_bands(tables_->bands(), targets.to_vector<int32_t>(), compat_);
    const BandTensors tails = to_device(gathered.tails, device);
    std::vector<double> losses =
        output_token_losses(hidden, tables_->table(0).value(),
                            Tensor::from(gathered.head, targets.shape(), device))
            .to_vector<double>();
    const auto* row = gathered.tails.rows.data();
    for (int64_t band = 1; band < tables_->bands().count(); ++band) {
      const Variable y = gather(flat(into_tail(Variable(hidden), band)),
                                of_band(tails.rows, tails.sizes, band - 1));
      const Tensor own = output_token_losses(y.value(), tables_->table(band).value(),
                                             of_band(tails.ids, tails.sizes, band - 1));
      for (const double loss : own.to_vector<double>()) {
        if (*row >= 0) losses[static_cast<size_t>(*row)] += loss;
        ++row;
      }
    }
    return Tensor::from(losses, {targets.elements()}, device);
  }

  // Logarithms of probabilities.
  Tensor logits(const Tensor& hidden) const override {
    const NoGrad off;
    const Bands& bands = tables_->bands();
    const Variable head = log_softmax(wide_logits(hidden, tables_->table(0).value()));
    const int64_t frequent = bands.words(0);
    std::vector<Variable> parts{slice(head, 1, 0, frequent)};
    for (int64_t band = 1; band < bands.count(); ++band) {
      const Tensor y = into_tail(Variable(hidden), band).value();
      parts.push_back(add(slice(head, 1, frequent + band - 1, frequent + band),
                          log_softmax(wide_logits(y, tables_->table(band).value()))));
    }
    return concatenate(parts, 1).value();
  }

 private:
  static Variable flat(const Variable& x) {
    return reshape(x, {x.value().elements() / x.size(-1), x.size(-1)});
  }
  // W_b^T z, [..,d_b].
  Variable into_tail(const Variable& z, int64_t band) const {
    return reshape(matmul(flat(z), tables_->projection(band)),
                   z.shape().with(-1, tables_->bands().width(band)));
  }

  std::shared_ptr<const AdaptiveTables> tables_;
  double dropout_;
  bool compat_;
};

}  // namespace

Head make_adaptive_head(const HeadParts& parts) {
  const ModelConfig& config = parts.config;
  std::shared_ptr<const AdaptiveTables> tables = parts.adaptive_tables;
  if (!config.tie_embeddings) {
    tables = std::make_shared<AdaptiveTables>(config, bands_of(config, parts.sizes.vocabulary),
                                              parts.model.child("head"),
                                              AdaptiveTables::Use{.output = true});
  }
  return std::make_unique<AdaptiveHead>(std::move(tables), config.head_dropout, config.head_compat);
}

}  // namespace linnet
