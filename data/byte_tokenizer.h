// The byte tokenizer: id = byte value, 256 ids and an optional end-of-text id.
#pragma once

#include "data/tokenizer.h"

namespace linnet {

// Ids 0-255 are the bytes; with eos, id 256 ends a document.
std::unique_ptr<Tokenizer> make_byte_tokenizer(bool eos);
// From Tokenizer::serialise's payload; throws Error that begins with `what`.
std::unique_ptr<Tokenizer> byte_tokenizer_from_payload(std::string_view payload,
                                                       std::string_view what);

}  // namespace linnet
