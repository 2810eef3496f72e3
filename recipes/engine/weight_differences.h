// Parameters of a model that stored weights do not fit, told in one error.
#pragma once

#include <string>
#include <vector>

#include "core/error.h"

namespace linnet {

// Parameters that differ in one way, of which the first few are named.
class WeightDifferences {
 public:
  // `place`: the path of the weights; `what`: "other shapes".
  WeightDifferences(ErrorCode code, std::string place, const char* what)
      : code_(code), place_(std::move(place)), what_(what) {}
  void add(const std::string& name, const std::string& detail = "") {
    if (count_++ >= kNamed) return;
    text_ += concat(text_.empty() ? "" : ", ", name, detail);
    problems_.push_back({code_, name, place_, concat(what_, ": ", name, detail)});
  }
  // Adds to an error of all of them.
  void report(std::string& text, std::vector<Error::Problem>& problems) const {
    if (count_ == 0) return;
    text += concat("; ", what_, ": ", text_);
    if (count_ > kNamed) text += concat(" and ", count_ - kNamed, " more");
    problems.insert(problems.end(), problems_.begin(), problems_.end());
  }

 private:
  static constexpr size_t kNamed = 3;
  ErrorCode code_;
  std::string place_;
  const char* what_;
  size_t count_ = 0;
  std::string text_;
  std::vector<Error::Problem> problems_;
};

// Names of parameters in one line: those that differ in the number of their layer alone as one,
// "layers.*.attention.q.weight (12)"; at most 20, then how many more.
std::string names_of_layers(const std::vector<std::string>& names);

}  // namespace linnet
