// Hugging Face's tokenizer.json: byte-level BPE, WordPiece and Unigram.
#pragma once

#include "data/tokenizer.h"

namespace linnet {

// Reads a tokenizer.json; `path` names the file or the folder with it. Ids are those of Hugging
// Face's library, added tokens of the file included: these are found in texts. What linnet does not
// do exactly is refused, with its place (tokenizer_json_parts.h). Decoded words have one space
// between.
std::unique_ptr<Tokenizer> load_tokenizer_json(const std::string& path);

// The same from the text of the file; `what` begins messages.
std::unique_ptr<Tokenizer> make_tokenizer_json(std::string text, std::string_view what);
// From Tokenizer::serialise's payload, the text of the file.
std::unique_ptr<Tokenizer> tokenizer_json_from_payload(std::string_view payload,
                                                       std::string_view what);

}  // namespace linnet
