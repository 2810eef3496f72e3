// Whether functions check the values of their inputs where that takes a pass over them: always in
// debug builds, elsewhere while a ValueChecks lives (the conformance suite has one).
#pragma once

namespace linnet {

bool values_are_checked();

// For the whole process, on all threads; they nest.
class ValueChecks {
 public:
  ValueChecks();
  ~ValueChecks();
  ValueChecks(const ValueChecks&) = delete;
  ValueChecks& operator=(const ValueChecks&) = delete;
};

}  // namespace linnet
