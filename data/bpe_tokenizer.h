// GPT-2's byte-level byte-pair encoding (Radford et al. 2019), read from its published files.
#pragma once

#include "data/tokenizer.h"

namespace linnet {

// Reads encoder.json and vocab.bpe (or vocab.json and merges.txt) in `folder`. Throws Error naming
// the file that is missing or broken, and what is wrong with it.
std::unique_ptr<Tokenizer> load_bpe_tokenizer(const std::string& folder);

// From the contents of the two files; `what` begins the messages.
std::unique_ptr<Tokenizer> make_bpe_tokenizer(std::string encoder_json, std::string merges,
                                              std::string_view what);

// From Tokenizer::serialise's payload.
std::unique_ptr<Tokenizer> bpe_tokenizer_from_payload(std::string_view payload,
                                                      std::string_view what);

}  // namespace linnet
