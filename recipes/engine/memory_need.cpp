#include "recipes/engine/memory_need.h"

#include <optional>

#include "core/free_memory.h"
#include "layers/models.h"

namespace linnet {
namespace {

// Sizes are multiplied as floating-point numbers, which do not overflow.
double elements_of(const Shape& shape) {
  return static_cast<double>(shape.elements());
}

double optimizer_bytes(const Recipe& recipe) {
  const OptimConfig& optim = recipe.optim;
  const bool adam = optim.kind == OptimizerKind::adamw || optim.kind == OptimizerKind::adam;
  // Of many processes each has next to none of them.
  const double moments = recipe.train.shard_optimizer ? 0 : adam ? 2 : optim.momentum > 0 ? 1 : 0;
  return 4 * (moments + (optim.ema ? 1 : 0));
}

// What the device has where that is less than `needed`.
std::optional<double> free_if_lacking(Device device, double needed) {
  if (has_memory(device, needed)) return std::nullopt;
  const double free =
      static_cast<double>(free_memory(device)) + static_cast<double>(kept_memory(device));
  return needed <= free ? std::nullopt : std::optional(free);
}

// Token, target and position of 32 bits.
constexpr double kBytesOfToken = 12;

void require_batch_memory(const Transformer& model, int64_t rows, int64_t length,
                          double bytes_of_token, std::string_view key, std::string_view lengths) {
  const Device device = model.device();
  const double needed = static_cast<double>(rows) * static_cast<double>(length) * bytes_of_token;
  const std::optional<double> lacking = free_if_lacking(device, needed);
  if (!lacking) return;
  const double free = *lacking;
  const auto fitting = static_cast<int64_t>(free / (static_cast<double>(length) * bytes_of_token));
  throw UsageError(
      {ErrorCode::out_of_range, key},
      concat(key, ": ", rows, " of ", length, " tokens at once need at least ", memory_text(needed),
             ", and ", name_of(device), " has ", memory_text(free), " free; ",
             fitting < 1
                 ? concat("not even one fits: shorten ", lengths, ", or make the model smaller")
                 : concat("lower it, to ", fitting, " at most")));
}

}  // namespace

void require_model_memory(const Recipe& recipe, const Transformer& declared, Device device,
                          ModelUse use) {
  const bool bf16_values = recipe.train.precision == Precision::bf16;
  const double bytes_of_weight =
      8.0 + (bf16_values ? 2 : 0) + (use == ModelUse::training ? optimizer_bytes(recipe) : 0);
  double count = 0;
  for (const ParameterSet::Entry& entry : declared.parameters().entries()) {
    count += elements_of(entry.shape);
  }
  double needed = count * bytes_of_weight;
  for (const ParameterSet::Buffer& buffer : declared.parameters().buffers()) {
    needed += 4 * elements_of(buffer.shape);
  }
  const std::optional<double> lacking = free_if_lacking(device, needed);
  if (!lacking) return;
  const double free = *lacking;
  const ModelConfig& model = recipe.model;
  throw UsageError(
      {ErrorCode::out_of_range, "model"},
      concat("a model of ", static_cast<int64_t>(count), " parameters needs at least ",
             memory_text(needed), use == ModelUse::training ? " to be trained" : "", ", and ",
             name_of(device), " has ", memory_text(free), " free; lower model.width (", model.width,
             "), model.layers (", model.layers, ") or model.feed_forward_width (",
             model.hidden_width(), ")"));
}

void require_update_memory(const Recipe& recipe, const Transformer& model, int64_t rows,
                           int64_t length) {
  // The backward pass needs at least the input of each block, and the last one's output.
  const ModelConfig& config = recipe.model;
  const int64_t blocks =
      config.layers + (kind_has_encoder(config.kind) ? config.layers_of_decoder() : 0);
  const double kept = config.layer_dropout > 0 ? 1 : static_cast<double>(1 + blocks);
  const double bytes = recipe.train.precision == Precision::bf16 ? 2 : 4;
  require_batch_memory(model, rows, length,
                       kBytesOfToken + kept * static_cast<double>(config.width) * bytes,
                       "train.micro_batch", "data.context");
}

void require_scoring_memory(const Transformer& model, int64_t rows, int64_t length) {
  if (!model.parameters().weights().defined()) return;
  // A block has its input and the normalized one, in bf16 at the least.
  require_batch_memory(model, rows, length,
                       kBytesOfToken + 4 * static_cast<double>(model.config().width),
                       "evaluate.batch", "evaluate.contexts");
}

}  // namespace linnet
