#include "recipes/engine/beam_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

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

// The search behind one text.
class Search {
 public:
  Search(const Transformer& model, ReadText text, size_t number, const GenerateOptions& options,
         const BeamOptions& beam)
      : options_(options), beam_(beam), number_(number) {
    require(text.hidden.defined(), "beam search: nothing was read");
    require_room(model, text.state.length, options.tokens);
    live_.push_back({std::move(text.state), std::move(text.hidden), {}, {}, 0});
    bytes_ = state_bytes();
  }
  size_t number() const { return number_; }
  std::vector<Beam>& live() { return live_; }
  bool ended() const {
    return length_ == options_.tokens || ended_ == beam_.beams || live_.empty();
  }

  // Every beam by a token, from the logits of all.
  void extend(std::span<const float> logits) {
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
    if (++length_ < options_.tokens || ended_ == beam_.beams) return;
    for (Beam& beam : live_) compare(std::move(beam));
  }
  // The last tokens of its beams have been read.
  void note_pass() {
    bytes_ = state_bytes();
    ++best_.passes;
  }

  BeamText result() {
    best_.text.seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    best_.text.state_bytes = bytes_;
    return std::move(best_);
  }

 private:
  // Of all beams, the source that they share once.
  size_t state_bytes() const {
    ModelState source;
    source.cross = live_[0].state.cross;
    size_t bytes = source.bytes();
    for (const Beam& beam : live_) bytes += beam.state.bytes() - source.bytes();
    return bytes;
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

  const GenerateOptions& options_;
  const BeamOptions& beam_;
  size_t number_;
  std::vector<Beam> live_;
  int64_t length_ = 0, ended_ = 0;
  size_t bytes_ = 0;
  BeamText best_;
  Clock::time_point start_ = Clock::now();
};

using Searches = std::vector<std::unique_ptr<Search>>;

// A step's loops read the layers' decode states, one after the other.
int64_t loop_work(const Transformer& model, const Searches& searches) {
  size_t bytes = 0;
  for (const auto& search : searches) bytes = std::max(bytes, search->live()[0].state.bytes());
  return static_cast<int64_t>(bytes / sizeof(float)) / model.config().layers;
}

void extend(const Transformer& model, const Searches& searches) {
  std::vector<Tensor> rows;
  for (const auto& search : searches) {
    for (const Beam& beam : search->live()) rows.push_back(beam.hidden);
  }
  const std::vector<float> logits =
      model.token_head().logits(concatenate(rows, 0)).to_vector<float>();
  const size_t words = logits.size() / rows.size();
  size_t at = 0;
  for (const auto& search : searches) {
    const size_t own = search->live().size() * words;
    search->extend(std::span(logits).subspan(at, own));
    at += own;
  }
}

// Each beam's last token through the model.
void read_tokens(const Transformer& model, const Searches& searches) {
  std::vector<int32_t> tokens;
  std::vector<ModelState*> states;
  std::vector<Tensor*> vectors;
  for (const auto& search : searches) {
    for (Beam& beam : search->live()) {
      tokens.push_back(beam.tokens.back());
      states.push_back(&beam.state);
      vectors.push_back(&beam.hidden);
    }
  }
  const auto rows = std::ssize(tokens);
  const Tensor hidden =
      model.encode_rows(Tensor::from(tokens, {rows, 1}, model.device()), states).value();
  for (int64_t row = 0; row < rows; ++row) {
    *vectors[static_cast<size_t>(row)] = hidden.rows(row, row + 1).reshape({1, hidden.size(2)});
  }
  for (const auto& search : searches) search->note_pass();
}

}  // namespace

void BeamOptions::validate() const {
  require_usage(beams >= 1 && beams <= kMaxProductRows,
                Cause{ErrorCode::out_of_range, "generate.beam"},
                "the number of beams must be 1 to ", kMaxProductRows, ", got ", beams);
  require_usage(std::isfinite(length_penalty), Cause{ErrorCode::out_of_range, "--length-penalty"},
                "the length penalty must be a number, got ", length_penalty);
}

int64_t beam_slots(int64_t asked, const BeamOptions& beam) {
  return std::max<int64_t>(1, std::min(asked, kMaxProductRows / beam.beams));
}

BatchCounts beam_search_batch(const Transformer& model, std::span<const ReadTurn> texts,
                              const GenerateOptions& options, const BeamOptions& beam,
                              int64_t slots,
                              const std::function<void(size_t text, BeamText result)>& on_done) {
  model.token_head();
  beam.validate();
  const NoGrad off;
  const StepMemory memory;
  const auto places = static_cast<size_t>(beam_slots(slots, beam));
  BatchCounts counts;
  Searches running;
  const auto done = [&](const std::unique_ptr<Search>& search) {
    BeamText found = search->result();
    counts.tokens += std::ssize(found.text.tokens);
    on_done(search->number(), std::move(found));
  };
  for (size_t next = 0; next < texts.size() || !running.empty();) {
    for (; next < texts.size() && running.size() < places; ++next) {
      auto search = std::make_unique<Search>(model, texts[next](), next, options, beam);
      if (search->ended()) {
        done(search);
      } else {
        running.push_back(std::move(search));
      }
    }
    if (running.empty()) continue;
    const auto start = Clock::now();
    const SmallStep step(loop_work(model, running));
    extend(model, running);
    for (const auto& search : running) {
      if (search->ended()) done(search);
    }
    std::erase_if(running, [](const auto& search) { return search->ended(); });
    if (!running.empty()) {
      read_tokens(model, running);
      ++counts.passes;
    }
    counts.seconds += std::chrono::duration<double>(Clock::now() - start).count();
  }
  return counts;
}

BeamText beam_search(const Transformer& model, const ReadText& text, const GenerateOptions& options,
                     const BeamOptions& beam) {
  BeamText found;
  const ReadTurn read = [&text] { return text; };
  beam_search_batch(model, {&read, 1}, options, beam, 1,
                    [&found](size_t, BeamText result) { found = std::move(result); });
  return found;
}

}  // namespace linnet
