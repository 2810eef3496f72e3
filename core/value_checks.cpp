#include "core/value_checks.h"

#include <atomic>

namespace linnet {
namespace {

std::atomic<int> alive{0};

}  // namespace

bool values_are_checked() {
#ifdef NDEBUG
  return alive > 0;
#else
  return true;
#endif
}

ValueChecks::ValueChecks() {
  ++alive;
}
ValueChecks::~ValueChecks() {
  --alive;
}

}  // namespace linnet
