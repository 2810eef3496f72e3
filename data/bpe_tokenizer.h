// GPT-2's byte-level byte-pair encoding (Radford et al. 2019), and RoBERTa's ids of the same tokens
// (Liu et al. 2019), read from their published files.
#pragma once

#include "data/tokenizer.h"

namespace linnet {

// Reads encoder.json and vocab.bpe (or vocab.json and merges.txt) in `folder`. Throws Error naming
// the file that is missing or broken, and what is wrong with it. Merges that leave out tokens of
// the vocabulary are a truncated file.
std::unique_ptr<Tokenizer> load_bpe_tokenizer(const std::string& folder);

// From the contents of the two files, whose names begin the messages about them. Merges may be
// fewer than the vocabulary needs: checkpoints hold such tokenizers.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string encoder_json, std::string merges,
                                              std::string_view vocabulary_name,
                                              std::string_view merges_name);

// Reads vocab.json and merges.txt in `folder`, or fairseq's dict.txt with encoder.json and
// vocab.bpe: the same tokenizer. <s>, <pad>, </s>, <unk> and <mask> are special; no text has their
// ids.
std::unique_ptr<Tokenizer> load_roberta_tokenizer(const std::string& folder);

// From Tokenizer::serialise's payload.
std::unique_ptr<Tokenizer> roberta_tokenizer_from_payload(std::string_view payload,
                                                          std::string_view what);
std::unique_ptr<Tokenizer> bpe_tokenizer_from_payload(std::string_view payload,
                                                      std::string_view what);

}  // namespace linnet
