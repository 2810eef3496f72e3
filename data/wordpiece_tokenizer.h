// BERT's tokenizer, read from the vocab.txt that is published with a model.
#pragma once

#include "data/tokenizer.h"

namespace linnet {

// Reads vocab.txt: one token a line (LF or CRLF), the line number (from 0) is the id; [UNK] must be
// among them. `path` names the file or the folder with it. Uncased vocabularies need `lowercase`.
// Words of more than 100 characters are [UNK], as in Hugging Face's files of the same models (the
// first release had 200). No text has the ids of [PAD], [CLS], [SEP] and [MASK]. Throws Error with
// file and line.
std::unique_ptr<Tokenizer> load_wordpiece_tokenizer(const std::string& path, bool lowercase);

// The same from the text of the file; `what` begins messages.
std::unique_ptr<Tokenizer> make_wordpiece_tokenizer(std::string_view vocabulary, bool lowercase,
                                                    std::string_view what);
// From Tokenizer::serialise's payload.
std::unique_ptr<Tokenizer> wordpiece_tokenizer_from_payload(std::string_view payload,
                                                            std::string_view what);

}  // namespace linnet
