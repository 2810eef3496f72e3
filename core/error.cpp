// Errors with their problems.
#include "core/error.h"

#include "core/echo.h"

namespace linnet {
namespace {

std::shared_ptr<const std::vector<Error::Problem>> with_short_texts(
    std::vector<Error::Problem> problems) {
  for (Error::Problem& problem : problems) {
    for (std::string* text : {&problem.key, &problem.place, &problem.text}) {
      *text = shortened_message(*text);
    }
  }
  return std::make_shared<const std::vector<Error::Problem>>(std::move(problems));
}

}  // namespace

Error::Error(const Cause& cause, const std::string& text)
    : Error({Problem{cause.code, std::string(cause.key), std::string(cause.place), text}}, text) {}

Error::Error(std::vector<Problem> problems, const std::string& text)
    : std::runtime_error(shortened_message(text)),
      problems_(with_short_texts(std::move(problems))) {}

}  // namespace linnet
