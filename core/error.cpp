// Errors with their problems.
#include "core/error.h"

namespace linnet {

Error::Error(const Cause& cause, const std::string& text)
    : Error({Problem{cause.code, std::string(cause.key), std::string(cause.place), text}}, text) {}

Error::Error(std::vector<Problem> problems, const std::string& text)
    : std::runtime_error(text),
      problems_(std::make_shared<const std::vector<Problem>>(std::move(problems))) {}

}  // namespace linnet
