#include "recipes/engine/speculation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "core/step_memory.h"
#include "core/threads.h"
#include "recipes/engine/model_builder.h"

namespace linnet {
namespace {

using Clock = std::chrono::steady_clock;

// Thresholds of typical acceptance, those of Medusa's code.
constexpr double kMaxThreshold = 0.09, kEntropyFactor = 0.3;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// The ids of the `count` largest logits, largest first; the lower id of equal ones.
std::vector<int32_t> best_tokens(std::span<const float> logits, int64_t count) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

// How many guesses a tree needs of the heads 1, 2, ...
std::vector<int64_t> guesses_needed(const TokenTree& tree) {
  std::vector<int64_t> needed(static_cast<size_t>(tree.depth()));
  for (size_t node = 1; node < tree.ranks.size(); ++node) {
    int64_t& count = needed[static_cast<size_t>(tree.depths[node] - 1)];
    count = std::max(count, tree.ranks[node] + 1);
  }
  return needed;
}

// With which each token is drawn.
std::vector<double> probabilities(std::span<const float> logits, const SamplingOptions& options) {
  const Candidates drawn = candidates_of(logits, options);
  std::vector<double> result(logits.size());
  for (size_t i = 0; i < drawn.ids.size(); ++i) {
    result[static_cast<size_t>(drawn.ids[i])] = drawn.weights[i] / drawn.mass;
  }
  return result;
}

double typical_threshold(std::span<const double> p) {
  double entropy = 0;
  for (const double each : p) entropy -= each > 0 ? each * std::log(each) : 0;
  return std::min(kMaxThreshold, kEntropyFactor * std::exp(-entropy));
}

// A text that is continued by trees.
class Speculating {
 public:
  Speculating(const Transformer& model, const Continuation& text, const Speculation& speculation)
      : model_(model),
        options_(text.options),
        on_token_(text.on_token),
        speculation_(speculation),
        key_(RandomKey{options_.seed, options_.sample, 0}.at("generate")),
        text_(text.read()),
        seen_(static_cast<size_t>(model.vocabulary())) {
    require(text_.hidden.defined(), "generate: nothing was read");
    require_room(model, text_.state.length, options_.tokens);
    for (const int32_t token : text_.seen) seen_[static_cast<size_t>(token)] = true;
  }

  Speculated run() {
    const StepMemory memory;
    const auto start = Clock::now();
    if (options_.tokens > 0) {
      const auto bytes = static_cast<int64_t>(text_.state.bytes() / sizeof(float));
      const SmallStep step(bytes / model_.config().layers);
      emit(draw(logits_of(text_.hidden)));
    }
    while (!ended_ && options_.tokens > 0) pass();
    result_.text.seconds = seconds_since(start);
    result_.text.state_bytes = text_.state.bytes();
    return std::move(result_);
  }

 private:
  std::vector<float> logits_of(const Tensor& hidden) const {
    return model_.token_head().logits(hidden).to_vector<float>();
  }

  // The tokens of the nodes behind the last token of the text.
  std::vector<int32_t> guess(const TokenTree& tree) const {
    std::vector<std::vector<int32_t>> guesses;
    for (const int64_t count : guesses_needed(tree)) {
      const int64_t head = std::ssize(guesses) + 1;
      const auto logits = model_.medusa()->logits(head, text_.hidden).to_vector<float>();
      guesses.push_back(best_tokens(logits, count));
    }
    std::vector<int32_t> tokens{result_.text.tokens.back()};
    for (size_t node = 1; node < tree.ranks.size(); ++node) {
      const auto& of_head = guesses[static_cast<size_t>(tree.depths[node] - 1)];
      tokens.push_back(of_head[static_cast<size_t>(tree.ranks[node])]);
    }
    return tokens;
  }

  void pass() {
    const auto written = static_cast<int64_t>(result_.text.tokens.size());
    const int64_t wanted = options_.tokens - written - 1;  // a pass draws one more token
    const TokenTree tree = tree_with_room(model_, text_.state,
                                          speculation_.tree.down_to(std::max<int64_t>(wanted, 0)));
    const auto bytes = static_cast<int64_t>(text_.state.bytes() / sizeof(float));
    const SmallStep step(bytes / model_.config().layers);
    const std::vector<int32_t> tokens = guess(tree);
    const TreeReading reading =
        model_.encode_tree(Tensor::from(tokens, {tree.size(), 1}, model_.device()), tree.parents,
                           text_.state, speculation_.states);
    const std::vector<float> logits = logits_of(reading.hidden);
    const bool typical =
        speculation_.acceptance == Acceptance::typical && options_.sampling.temperature > 0;
    const std::vector<int64_t> path =
        typical ? typical_path(tree, tokens, logits) : exact_path(tree, tokens, logits);
    // Those behind the end of the text do not count.
    const auto accepted = result_.text.tokens.size() - static_cast<size_t>(written) - 1;
    std::vector<int64_t>& counts = result_.counts.accepted;
    counts.resize(std::max(counts.size(), accepted + 1));
    ++counts[accepted];
    text_.state = reading.after(path);
    text_.hidden = reading.hidden.rows(path.back(), path.back() + 1);
  }

  std::span<const float> row(const std::vector<float>& logits, int64_t node) const {
    const auto words = static_cast<size_t>(model_.vocabulary());
    return std::span(logits).subspan(static_cast<size_t>(node) * words, words);
  }

  // Nodes whose tokens the model writes itself, and behind them a token of its own.
  std::vector<int64_t> exact_path(const TokenTree& tree, const std::vector<int32_t>& tokens,
                                  const std::vector<float>& logits) {
    std::vector<int64_t> path{0};
    for (;;) {
      const std::span<const float> own = row(logits, path.back());
      const int32_t token = draw({own.begin(), own.end()});
      int64_t next = path.back() + 1;
      while (next < tree.size() && (tree.parents[static_cast<size_t>(next)] != path.back() ||
                                    tokens[static_cast<size_t>(next)] != token)) {
        ++next;
      }
      emit(token);
      if (ended_ || next == tree.size()) return path;
      path.push_back(next);
    }
  }

  std::vector<int64_t> typical_path(const TokenTree& tree, const std::vector<int32_t>& tokens,
                                    const std::vector<float>& logits) {
    const auto count = static_cast<size_t>(tree.size());
    std::vector<std::vector<double>> p(count);  // at nodes that are taken
    std::vector<double> thresholds(count), likelihood(count, 1);
    const auto take = [&](size_t node) {
      const std::span<const float> own = row(logits, static_cast<int64_t>(node));
      std::vector<float> penalized(own.begin(), own.end());
      std::vector<bool> seen = seen_;
      for (auto at = static_cast<int64_t>(node); at > 0;
           at = tree.parents[static_cast<size_t>(at)]) {
        seen[static_cast<size_t>(tokens[static_cast<size_t>(at)])] = true;
      }
      penalize(penalized, seen, options_.sampling.repetition_penalty);
      p[node] = probabilities(penalized, options_.sampling);
      thresholds[node] = typical_threshold(p[node]);
    };
    take(0);
    size_t best = 0;
    for (size_t node = 1; node < count; ++node) {
      const auto above = static_cast<size_t>(tree.parents[node]);
      if (p[above].empty()) continue;
      const double own = p[above][static_cast<size_t>(tokens[node])];
      if (own <= thresholds[above]) continue;
      take(node);
      likelihood[node] = likelihood[above] * own;
      const bool longer = tree.depths[node] > tree.depths[best];
      if (longer ||
          (tree.depths[node] == tree.depths[best] && likelihood[node] > likelihood[best])) {
        best = node;
      }
    }
    std::vector<int64_t> path{static_cast<int64_t>(best)};
    while (path.back() > 0) path.push_back(tree.parents[static_cast<size_t>(path.back())]);
    std::reverse(path.begin(), path.end());
    for (size_t i = 1; i < path.size() && !ended_; ++i) {
      note_probability(row(logits, path[i - 1]), tokens[static_cast<size_t>(path[i])]);
      emit(tokens[static_cast<size_t>(path[i])]);
    }
    if (!ended_) {
      const std::span<const float> own = row(logits, path.back());
      emit(draw({own.begin(), own.end()}));
    }
    return path;
  }

  // The model's next token: the draw that generate_batch() would make here.
  int32_t draw(std::vector<float> logits) {
    std::vector<float> own;
    if (options_.log_probabilities) own = logits;
    penalize(logits, seen_, options_.sampling.repetition_penalty);
    const auto number = static_cast<uint64_t>(result_.text.tokens.size());
    const int32_t token = sample_token(logits, options_.sampling, key_, number);
    note_probability(own, token);
    return token;
  }

  void note_probability(std::span<const float> logits, int32_t token) {
    if (!options_.log_probabilities) return;
    result_.text.log_probabilities.push_back(log_probability(logits, token));
  }

  void emit(int32_t token) {
    result_.text.tokens.push_back(token);
    seen_[static_cast<size_t>(token)] = true;
    const bool wanted = !on_token_ || on_token_(token);
    ended_ = !wanted || static_cast<int64_t>(result_.text.tokens.size()) == options_.tokens ||
             (options_.eos_id >= 0 && token == options_.eos_id);
  }

  const Transformer& model_;
  const GenerateOptions& options_;
  const OnToken& on_token_;
  const Speculation& speculation_;
  RandomKey key_;
  ReadText text_;  // the last token of the result is not read yet
  std::vector<bool> seen_;
  bool ended_ = false;
  Speculated result_;
};

}  // namespace

int64_t TreeCounts::passes() const {
  return std::accumulate(accepted.begin(), accepted.end(), int64_t{0});
}

double TreeCounts::tokens_per_pass() const {
  double tokens = 0;
  for (size_t n = 0; n < accepted.size(); ++n) {
    tokens += static_cast<double>(n + 1) * static_cast<double>(accepted[n]);
  }
  return accepted.empty() ? 0 : tokens / static_cast<double>(passes());
}

void TreeCounts::add(const TreeCounts& other) {
  accepted.resize(std::max(accepted.size(), other.accepted.size()));
  for (size_t n = 0; n < other.accepted.size(); ++n) accepted[n] += other.accepted[n];
}

TokenTree tree_with_room(const Transformer& model, const ModelState& state, const TokenTree& tree) {
  const int64_t limit = model.length_limit();
  return limit == 0 ? tree : tree.down_to(std::max<int64_t>(limit - state.length - 1, 0));
}

void require_guesses(const Transformer& model, const TokenTree& tree) {
  const int64_t heads = model.medusa() == nullptr ? 0 : model.medusa()->count();
  require_usage(heads > 0, Cause{ErrorCode::conflict, "--speculate"},
                "--speculate needs Medusa heads, which this checkpoint lacks: train some with "
                "'linnet train RECIPE --from CHECKPOINT --out DIR model.medusa.heads=4'");
  require_usage(tree.depth() <= heads, Cause{ErrorCode::conflict, "--speculate"}, "the tree is ",
                tree.depth(), " guesses deep, and the checkpoint has ", heads,
                heads == 1 ? " Medusa head" : " Medusa heads",
                ": give a tree of at most that depth");
  const int64_t most = *std::max_element(tree.ranks.begin(), tree.ranks.end());
  require_usage(most < model.vocabulary(), Cause{ErrorCode::out_of_range, "--speculate"},
                "the tree asks for guess number ", most + 1, " of a head, and the vocabulary has ",
                model.vocabulary(), " words");
}

BatchCounts speculate(
    const Transformer& model, std::span<const Continuation> texts, const Speculation& speculation,
    const std::function<void(size_t text, Generated result, const TreeCounts& counts)>& on_done) {
  model.token_head();
  require_decode_state(model, "generating text");
  require_guesses(model, speculation.tree);
  for (const Continuation& text : texts) text.options.sampling.validate();
  const NoGrad off;
  BatchCounts counts;
  for (size_t i = 0; i < texts.size(); ++i) {
    Speculated done = Speculating(model, texts[i], speculation).run();
    counts.passes += done.counts.passes();
    counts.tokens += std::ssize(done.text.tokens);
    counts.seconds += done.text.seconds;
    on_done(i, std::move(done.text), done.counts);
  }
  return counts;
}

Speculated speculate(const Transformer& model, const ReadText& text, const GenerateOptions& options,
                     const Speculation& speculation, const OnToken& on_token) {
  Speculated speculated;
  const Continuation one{[&text] { return text; }, options, on_token};
  speculate(model, {&one, 1}, speculation, [&](size_t, Generated result, const TreeCounts& counts) {
    speculated = {std::move(result), counts};
  });
  return speculated;
}

}  // namespace linnet
