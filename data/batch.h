// Batch: the examples of one step, as plain arrays.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace linnet {

inline constexpr int32_t kNotScored = -1;  // the target of a token that is not scored

// B rows of T tokens, row-major. Owns its arrays, each of which may be empty but for the tokens.
struct Batch {
  int64_t B = 0, T = 0;
  int64_t rows_per_example = 1;  // 2: rows 2i and 2i+1 are one example, a pair for two towers
  std::vector<int32_t> tokens;   // [B,T] ids
  // [B,S] what an encoder reads apart from the tokens, and 1 = valid; else empty.
  std::vector<int32_t> source;
  std::vector<uint8_t> source_mask;
  // [B,T], or [C] with `places`: the id to predict, or kNotScored; empty for classification.
  std::vector<int32_t> targets;
  // [C]: the tokens, of B T, that are scored, -1 behind the last of them; empty: any may be. Then
  // place_of [B,T] is the inverse: the place of a token, -1 where it has none.
  std::vector<int32_t> places, place_of;
  std::vector<int32_t> positions;    // [B,T] inside the document, or inside the window
  std::vector<int32_t> segments;     // [B,T] tokens attend within equal numbers; empty: one a row
  std::vector<int32_t> token_types;  // [B,T] which text of a pair a token is of; empty: all of one
  std::vector<uint8_t> mask;         // [B,T] 1 = valid; empty: all valid
  // By band of the vocabulary, for models with adaptive inputs and softmax, otherwise empty: places
  // of each band; of every place, band after band, the word's number in its band and the token of
  // B T that it is, -1 where it is none. The head's target of each token is [B,T].
  std::vector<int64_t> token_band_sizes, target_tail_sizes;
  std::vector<int32_t> token_band_ids, token_band_rows;
  std::vector<int32_t> target_tail_ids, target_tail_rows, head_targets;
  // [K,B,T], for models with K Medusa heads: the id 1 ... K places after a token's target, or
  // kNotScored.
  std::vector<int32_t> later_targets;
  std::vector<int64_t> example_ids;  // [B] stable: the same row has it in every epoch
  std::vector<float> values;         // [B / rows_per_example] of a regression
  std::vector<int32_t> labels;       // [B / rows_per_example] classes; empty for language models
  // The state that the previous batch left is carried into this one (streaming evaluation).
  bool continues = false;
  // Of the scored targets (classification: of the examples).
  int64_t target_count = 0;
  int64_t scored_bytes = 0, scored_words = 0;

  // Calls visit(name, array, shape) for every array, in the same order. Copies to a device, forms
  // and whatever compares batches array by array go through this list.
  template <typename Visit>
  void for_each_array(const Visit& visit) const {
    const Shape per_token{B, T};
    visit("tokens", tokens, per_token);
    const Shape per_source{B, B > 0 ? std::ssize(source) / B : 0};
    visit("source", source, per_source);
    visit("source_mask", source_mask, per_source);
    visit("targets", targets, places.empty() ? per_token : Shape{std::ssize(places)});
    visit("places", places, Shape{std::ssize(places)});
    visit("place_of", place_of, Shape{B * T});
    visit("positions", positions, per_token);
    visit("segments", segments, per_token);
    visit("token_types", token_types, per_token);
    visit("mask", mask, per_token);
    const auto list = [](const auto& array) { return Shape{std::ssize(array)}; };
    visit("token_band_ids", token_band_ids, list(token_band_ids));
    visit("token_band_rows", token_band_rows, list(token_band_rows));
    visit("target_tail_ids", target_tail_ids, list(target_tail_ids));
    visit("target_tail_rows", target_tail_rows, list(target_tail_rows));
    visit("head_targets", head_targets, per_token);
    visit("later_targets", later_targets,
          later_targets.empty() ? Shape{0} : Shape{std::ssize(later_targets) / (B * T), B, T});
    visit("example_ids", example_ids, Shape{B});
    visit("values", values, Shape{B / rows_per_example});
    visit("labels", labels, Shape{B / rows_per_example});
  }

  // The sizes of the batch, of its arrays and of its bands: batches of one form go through the same
  // device tensors, and through one captured graph.
  std::vector<int64_t> form() const {
    std::vector<int64_t> form = {B, T, rows_per_example};
    for_each_array([&form](std::string_view, const auto& array, const Shape&) {
      form.push_back(std::ssize(array));
    });
    for (const auto* sizes : {&token_band_sizes, &target_tail_sizes}) {
      form.insert(form.end(), sizes->begin(), sizes->end());
    }
    return form;
  }
  bool operator==(const Batch&) const = default;
};

}  // namespace linnet
