#include "recipes/engine/bench/decode.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "autograd/variable.h"
#include "core/random.h"
#include "layers/models.h"
#include "recipes/engine/bench/timing.h"
#include "recipes/engine/generator.h"

namespace linnet {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<int32_t> random_tokens(const Transformer& model, uint64_t row, int64_t count) {
  const RandomKey key = RandomKey{1, row, 0}.at("bench");
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(
        key.below(static_cast<uint64_t>(i), static_cast<uint64_t>(model.vocabulary()))));
  }
  return tokens;
}

// Bytes that tensors held at the most, without gradients, which generation does not use.
size_t peak_bytes(const Transformer& model, Device device) {
  return peak_allocated_bytes(device) - model.parameters().gradients().bytes();
}

// The steps from one told length to the next.
class Steps {
 public:
  Steps(const Transformer& model, ModelBench common, const DecodeBenchOptions& options,
        const std::function<void(ModelBench)>& on_result)
      : model_(model),
        result_(std::move(common)),
        options_(options),
        on_result_(on_result),
        length_(options.prompt) {
    result_.decode.emplace();
    result_.decode->prompt = options.prompt;
  }

  // After each pass of the model.
  void add(size_t state_bytes) {
    const double seconds = std::chrono::duration<double>(Clock::now() - last_).count();
    if (length_ > options_.prompt) {
      seconds_.push_back(seconds);
      total_ += seconds;
      ++steps_;
    }
    ++length_;
    if (told_ < options_.lengths.size() && length_ == options_.lengths[told_]) {
      tell(state_bytes);
      ++told_;
      seconds_.clear();
    }
    last_ = Clock::now();
  }

 private:
  void tell(size_t state_bytes) {
    std::sort(seconds_.begin(), seconds_.end());
    const auto at_95 = static_cast<size_t>(std::ceil(0.95 * static_cast<double>(seconds_.size())));
    result_.length = length_;
    result_.seconds = median(seconds_);
    result_.peak_bytes = peak_bytes(model_, options_.device);
    DecodeFigures& figures = *result_.decode;
    figures.steps = std::ssize(seconds_);
    figures.p95_seconds = seconds_[at_95 - 1];
    figures.tokens_per_s = static_cast<double>(result_.batch * steps_) / total_;
    figures.state_bytes = state_bytes;
    on_result_(result_);
  }

  const Transformer& model_;
  ModelBench result_;
  const DecodeBenchOptions& options_;
  const std::function<void(ModelBench)>& on_result_;
  int64_t length_, steps_ = 0;
  size_t told_ = 0;
  double total_ = 0;
  std::vector<double> seconds_;
  Clock::time_point last_ = Clock::now();
};

void continue_texts(const Transformer& model, const ModelBench& common,
                    const DecodeBenchOptions& options,
                    const std::function<void(ModelBench)>& on_result) {
  GenerateOptions generation;
  generation.tokens = options.lengths.back() - options.prompt + 1;
  generation.sampling.temperature = 0;
  std::vector<ReadText> texts(static_cast<size_t>(common.batch));
  std::vector<Continuation> continuations;
  for (size_t row = 0; row < texts.size(); ++row) {
    read_text(model, random_tokens(model, row, options.prompt), texts[row]);
    continuations.push_back({[&texts, row] { return std::move(texts[row]); }, generation, {}});
  }
  reset_peak_memory(options.device);
  Steps steps(model, common, options, on_result);
  generate_batch(
      model, continuations, common.batch, [](size_t, const Generated&) {},
      [&](size_t state_bytes) { steps.add(state_bytes); });
}

ModelBench pass_over_text(const Transformer& model, ModelBench result, int64_t prompt,
                          int64_t length, Device device) {
  constexpr int64_t kRuns = 3;
  const NoGrad off;
  const auto row = random_tokens(model, 0, length);
  // Of every row of the batch.
  const auto repeated = [&](int64_t first, int64_t last) {
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < result.batch; ++i) {
      tokens.insert(tokens.end(), row.begin() + first, row.begin() + last);
    }
    return Tensor::from(tokens, {result.batch, last - first}, device);
  };
  const int64_t source = kind_has_encoder(model.config().kind) ? prompt : 0;
  ModelInput input;
  if (source > 0) input.source = repeated(0, source);
  input.tokens = repeated(source, length);
  reset_peak_memory(device);
  result.length = length;
  result.seconds = 1e-3 * time_runs(device, kRuns, [&] {
                            const Tensor hidden = model.encode(input, nullptr).value();
                            const int64_t width = hidden.size(2);
                            for (int64_t i = 1; i <= result.batch; ++i) {
                              const int64_t last = i * hidden.size(1) - 1;
                              model.token_head().logits(hidden.slice(last * width, {1, width}));
                            }
                          }).median;
  result.peak_bytes = peak_bytes(model, device);
  return result;
}

}  // namespace

std::vector<int64_t> doubled_lengths(int64_t prompt, int64_t tokens) {
  constexpr int64_t kLeast = 8;
  std::vector<int64_t> lengths{prompt + tokens};
  while (lengths.back() / 2 - prompt >= kLeast) lengths.push_back(lengths.back() / 2);
  std::reverse(lengths.begin(), lengths.end());
  return lengths;
}

void require_room(const Transformer& model, const DecodeBenchOptions& options) {
  const int64_t steps = options.lengths.back() - options.prompt;
  // Each step reads the token that it has chosen, the last one too.
  if (steps < longest_continuation(model, prompt_positions(model, options.prompt))) return;
  const std::string prompt =
      kind_has_encoder(model.config().kind)
          ? "model.decoder_start"
          : concat(options.prompt, options.prompt == 1 ? " token" : " tokens", " of prompt");
  throw UsageError(
      {ErrorCode::out_of_range, "--lengths"},
      concat("bench decode: ", prompt, " and ", steps, " to follow do not fit into the ",
             model.length_limit(), " positions that the model handles; ask for fewer tokens; ",
             model.length_limit_reason()));
}

std::vector<ModelBench> bench_decode(const Transformer& model, const ModelBench& common,
                                     const DecodeBenchOptions& options, const OnPart& before,
                                     const std::function<void(const ModelBench&)>& on_result) {
  model.token_head();
  require(!options.lengths.empty() && options.prompt > 0 &&
              options.lengths.front() > options.prompt + 1 &&
              std::is_sorted(options.lengths.begin(), options.lengths.end()),
          "bench decode: lengths must rise, from two tokens beyond the prompt");
  require_room(model, options);
  std::vector<ModelBench> results;
  const auto total = std::ssize(options.batches) * std::ssize(options.lengths);
  const auto tell = [&](int64_t batch) {
    if (before && std::ssize(results) < total) {
      before(concat("batch ", batch), std::ssize(results), total);
    }
  };
  const std::function<void(ModelBench)> keep = [&](ModelBench result) {
    results.push_back(std::move(result));
    if (on_result) on_result(results.back());
    tell(results.back().batch);
  };
  for (const int64_t batch : options.batches) {
    ModelBench own = common;
    own.batch = batch;
    own.parameters = model.parameters().count();
    tell(batch);
    if (options.with_state) {
      continue_texts(model, own, options, keep);
    } else {
      for (const int64_t length : options.lengths) {
        keep(pass_over_text(model, own, options.prompt, length, options.device));
      }
    }
  }
  return results;
}

double growth_of(const std::vector<ModelBench>& results) {
  require(!results.empty(), "growth_of: no results");
  return results.back().seconds / results.front().seconds;
}

}  // namespace linnet
