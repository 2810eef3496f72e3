// The configuration of a corpus of text, for tests.
#pragma once

#include <string>

#include "data/text_dataset.h"

namespace linnet::test {

inline DataConfig config_of(const std::string& kind, const std::string& path) {
  DataConfig config(kind, path);
  config.cache = false;
  return config;
}

// Its lists of files; of kind text.
inline FileLists& lists_of(DataConfig& config) {
  return config.options.as<FileLists>();
}

}  // namespace linnet::test
