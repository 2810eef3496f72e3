// Ids in place of text, for models of generated sequences.
#pragma once

#include <memory>

#include "data/tokenizer.h"

namespace linnet {

// Text is ids of 0 to vocabulary - 1, separated by spaces: "5 3 7". `end` ends a sequence and has
// no text. encode() throws UsageError for anything else. Of no kind that recipes name: checkpoints
// keep none.
std::unique_ptr<Tokenizer> make_id_tokenizer(int32_t vocabulary, int32_t end);

}  // namespace linnet
