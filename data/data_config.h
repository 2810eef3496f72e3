// What the `data` section of a recipe says.
#pragma once

#include <cstdint>
#include <string>

#include "core/config.h"
#include "data/text_options.h"

namespace linnet {

// What all kinds of data have, and the keys of one kind.
struct DataConfig {
  std::string kind;
  std::string path;
  int64_t context = 1024;
  bool cache = true;
  KindOptions options;  // of that kind

  // Data of a kind of the registry (text where none is given), every other key at its default.
  // Throws UsageError for an unknown kind.
  DataConfig() : DataConfig("text") {}
  explicit DataConfig(std::string_view kind, std::string path = "");

  // How texts become tokens. Throws Error for a kind that gives no texts.
  const TextEncoding& text() const { return options.as<TextEncoding>(); }
  TextEncoding& text() { return options.as<TextEncoding>(); }
  // cross_documents, or the default of the kind: true where its protocol cuts one stream.
  bool crosses_documents() const;

  static void describe(ConfigDescription<DataConfig>& d);
  void validate(const ConfigNode& at) const;
};

}  // namespace linnet
