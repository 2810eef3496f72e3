// The configuration of a corpus of text, for tests.
#pragma once

#include <string>

#include "data/text_dataset.h"

namespace linnet::test {

inline DataConfig config_of(const std::string& kind, const std::string& path) {
  DataConfig config;
  config.kind = kind;
  config.path = path;
  config.cache = false;
  return config;
}

}  // namespace linnet::test
