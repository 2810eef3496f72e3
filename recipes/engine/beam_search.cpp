#include "recipes/engine/beam_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "autograd/layout.h"
#include "core/row_products.h"
#include "core/step_memory.h"
#include "core/threads.h"

namespace linnet {
namespace {

using Clock = std::chrono::steady_clock;

// A text and what follows it.
struct Beam {
  ModelState state;
  Tensor hidden;  // [1,E]
  std::vector<int32_t> tokens;
  std::vector<double> log_probabilities;
  double total = 0;  // of them
};

// A beam and its next token.
struct Extension {
  size_t beam = 0;
  int32_t token = 0;
  double log_probability = 0, total = 0;
};

// The likeliest extensions of all beams, at most `count`, the likeliest first. Of equal ones that
// of the earlier beam, then the lower id.
std::vector<Extension> likeliest(const std::vector<Beam>& beams, std::span<const float> logits,
                                 size_t count) {
  const size_t words = logits.size() / beams.size();
  std::vector<Extension> all;
  for (size_t i = 0; i < beams.size(); ++i) {
    const std::span<const float> own = logits.subspan(i * words, words);
    const auto best = static_cast<size_t>(std::max_element(own.begin(), own.end()) - own.begin());
    require(std::isfinite(own[best]) &&
                std::none_of(own.begin(), own.end(), [](float x) { return std::isnan(x); }),
            "beam search: a logit is not finite");
    const double norm = own[best] - log_probability(own, static_cast<int32_t>(best));
    const size_t begin = all.size();
    for (size_t word = 0; word < words; ++word) {
      const double nats = own[word] - norm;
      all.push_back({i, static_cast<int32_t>(word), nats, beams[i].total + nats});
    }
    // No more of one beam can be among the likeliest of all.
    if (words <= count) continue;
    const auto middle = all.begin() + static_cast<std::ptrdiff_t>(begin + count);
    std::nth_element(all.begin() + static_cast<std::ptrdiff_t>(begin), middle, all.end(),
                     [](const Extension& a, const Extension& b) {
                       return a.total != b.total ? a.total > b.total : a.token < b.token;
                     });
    all.erase(middle, all.end());
  }
  std::sort(all.begin(), all.end(), [](const Extension& a, const Extension& b) {
    if (a.total != b.total) return a.total > b.total;
    return a.beam != b.beam ? a.beam < b.beam : a.token < b.token;
  });
  all.resize(std::min(all.size(), count));
  return all;
}

class Search {
 public:
  Search(const Transformer& model, const ReadText& text, const GenerateOptions& options,
         const BeamOptions& beam)
      : model_(model), options_(options), beam_(beam) {
    live_.push_back({text.state, text.hidden, {}, {}, 0});
  }

  BeamText run() {
    const auto start = Clock::now();
    size_t bytes = state_bytes();
    for (int64_t length = 1; length <= options_.tokens && !live_.empty(); ++length) {
      const auto work = static_cast<int64_t>(live_[0].state.bytes() / sizeof(float));
      const SmallStep step(work / model_.config().layers);
      extend();
      if (ended_ == beam_.beams) break;
      if (length == options_.tokens) {
        for (Beam& beam : live_) compare(std::move(beam));
      } else if (!live_.empty()) {
        read_tokens();
        bytes = state_bytes();
      }
    }
    best_.text.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best_.text.state_bytes = bytes;
    return std::move(best_);
  }

 private:
  // Every beam by a token.
  void extend() {
    std::vector<Tensor> rows;
    for (const Beam& beam : live_) rows.push_back(beam.hidden);
    const std::vector<float> logits =
        model_.token_head().logits(concatenate(rows, 0)).to_vector<float>();
    const auto beams = static_cast<size_t>(beam_.beams);
    std::vector<Beam> next;
    size_t rank = 0;
    // One token of each beam ends it, so that twice as many have enough that go on.
    for (const Extension& each : likeliest(live_, logits, 2 * beams)) {
      const bool ends = each.token == options_.eos_id;
      const bool taken = ends ? rank < beams && ended_ < beam_.beams : next.size() < beams;
      ++rank;
      if (!taken) continue;
      Beam longer = live_[each.beam];
      longer.tokens.push_back(each.token);
      longer.log_probabilities.push_back(each.log_probability);
      longer.total = each.total;
      if (ends) {
        ++ended_;
        compare(std::move(longer));
      } else {
        next.push_back(std::move(longer));
      }
    }
    live_ = std::move(next);
  }

  // Of all beams, the source that they share once.
  size_t state_bytes() const {
    ModelState source;
    source.cross = live_[0].state.cross;
    size_t bytes = source.bytes();
    for (const Beam& beam : live_) bytes += beam.state.bytes() - source.bytes();
    return bytes;
  }

  // Each beam's last token through the model.
  void read_tokens() {
    std::vector<int32_t> tokens;
    std::vector<ModelState*> states;
    for (Beam& beam : live_) {
      tokens.push_back(beam.tokens.back());
      states.push_back(&beam.state);
    }
    const auto rows = std::ssize(live_);
    const Tensor hidden =
        model_.encode_rows(Tensor::from(tokens, {rows, 1}, model_.device()), states).value();
    for (int64_t row = 0; row < rows; ++row) {
      live_[static_cast<size_t>(row)].hidden =
          hidden.rows(row, row + 1).reshape({1, hidden.size(2)});
    }
    ++best_.passes;
  }

  // The first of equal scores stays.
  void compare(Beam text) {
    const double score =
        text.total / std::pow(static_cast<double>(text.tokens.size()), beam_.length_penalty);
    if (!best_.text.tokens.empty() && score <= best_.score) return;
    best_.score = score;
    best_.text.tokens = std::move(text.tokens);
    best_.text.log_probabilities = std::move(text.log_probabilities);
  }

  const Transformer& model_;
  const GenerateOptions& options_;
  const BeamOptions& beam_;
  std::vector<Beam> live_;
  int64_t ended_ = 0;
  BeamText best_;
};

}  // namespace

void BeamOptions::validate() const {
  require_usage(beams >= 1 && beams <= kMaxProductRows,
                Cause{ErrorCode::out_of_range, "generate.beam"},
                "the number of beams must be 1 to ", kMaxProductRows, ", got ", beams);
  require_usage(std::isfinite(length_penalty), Cause{ErrorCode::out_of_range, "--length-penalty"},
                "the length penalty must be a number, got ", length_penalty);
}

BeamText beam_search(const Transformer& model, const ReadText& text, const GenerateOptions& options,
                     const BeamOptions& beam) {
  model.token_head();
  beam.validate();
  require(text.hidden.defined(), "beam search: nothing was read");
  require_room(model, text.state.length, options.tokens);
  const NoGrad off;
  const StepMemory memory;
  return Search(model, text, options, beam).run();
}

}  // namespace linnet
