#include "data/text_options.h"

namespace linnet {

void TokenizerOption::describe(ConfigDescription<TokenizerOption>& d) {
  d.nested("tokenizer", &TokenizerOption::tokenizer, "how text becomes ids");
}

void TextEncoding::describe(ConfigDescription<TextEncoding>& d) {
  d.group<TokenizerOption>();
  d.choice("lines", &TextEncoding::lines, {"whole", "stripped"},
           "whole: documents as they are; stripped: each line stripped, encoded alone, then eos");
  d.field("document_eos", &TextEncoding::document_eos,
          "end each document with the tokenizer's eos, if it has one");
  d.optional("cross_documents", &TextEncoding::cross_documents,
             "cut one stream of all documents (default of pg19 and wikitext) instead of keeping "
             "attention and state inside each");
}

void FileLists::describe(ConfigDescription<FileLists>& d) {
  d.list("train", &FileLists::train, "files or patterns of the training split");
  d.list("validation", &FileLists::validation, "files or patterns of validation");
  d.list("test", &FileLists::test, "files or patterns of the test split");
}

void LengthsOption::describe(ConfigDescription<LengthsOption>& d) {
  d.choice("lengths", &LengthsOption::lengths, {"full", "like"},
           "full: rows of data.context tokens; like: examples of like lengths share a batch, which "
           "is padded to its longest");
}

void SpecialTokensOption::describe(ConfigDescription<SpecialTokensOption>& d) {
  d.choice(
      "special_tokens", &SpecialTokensOption::special_tokens, {"own", "none"},
      "own: the tokenizer's tokens around texts, or CLS and SEP behind its vocabulary where it "
      "has none; none: the texts' tokens alone, as GPT-2 is fine-tuned");
}

void SplitFractions::describe(ConfigDescription<SplitFractions>& d) {
  d.field("validation_fraction", &SplitFractions::validation_fraction,
          "share of the files that an automatic split gives to validation")
      .above(0)
      .below(1);
  d.field("test_fraction", &SplitFractions::test_fraction, "the same for the test split")
      .above(0)
      .below(1);
}

void SplitFractions::validate(const ConfigNode& at) const {
  if (validation_fraction + test_fraction >= 1)
    throw located_error(at.location_of("validation_fraction"), Cause{ErrorCode::out_of_range},
                        "validation_fraction and test_fraction leave nothing for training");
}

}  // namespace linnet
