// Beam search: the likeliest text, of those whose beginnings stay among the likeliest of their
// length.
#pragma once

#include "recipes/engine/generator.h"

namespace linnet {

struct BeamOptions {
  int64_t beams = 4;  // beginnings that are kept, 1 to kMaxProductRows
  // The score of a text of n tokens, its end included, is the sum of its log-probabilities over
  // n^length_penalty: 0 is the text's own probability, more prefers longer texts.
  double length_penalty = 1;
  // Throws UsageError naming the option that is out of range.
  void validate() const;
};

struct BeamText {
  Generated text;  // of the best score, with its log-probabilities; state_bytes: of all beams
  double score = 0;
  int64_t passes = 0;  // of the model, each over every beam
};

// Called when a text's turn comes.
using ReadTurn = std::function<ReadText()>;

// How many texts are searched behind at a time, of `asked`, so that their beams fit into the rows
// of a pass; at least one.
int64_t beam_slots(int64_t asked, const BeamOptions& beam);

// Continues a text by options.tokens at most, of which it takes no part but tokens and eos_id.
// Every step extends each of the beams by every token and keeps the likeliest; one of as many
// likeliest that is eos_id ends its text. The search ends when as many texts have ended as there
// are beams; those cut short by options.tokens count with their tokens so far. Beams share the
// state of what they have in common, an encoder's source too. With one beam the text is that of
// generate() at temperature 0; with as many beams as there are texts it is the best of all. Throws
// as generate(), and Error where a logit is NaN.
BeamText beam_search(const Transformer& model, const ReadText& text, const GenerateOptions& options,
                     const BeamOptions& beam);

// The same behind each of the texts, beam_slots(slots) at a time in the passes of one model: where
// a search ends, the next takes its place. On the CPU in f32 each is to the bit what it would be
// alone. `on_done` hears which one has ended.
BatchCounts beam_search_batch(const Transformer& model, std::span<const ReadTurn> texts,
                              const GenerateOptions& options, const BeamOptions& beam,
                              int64_t slots,
                              const std::function<void(size_t text, BeamText result)>& on_done);

}  // namespace linnet
