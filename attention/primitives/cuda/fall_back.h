// What the functions that choose between kernels do where the fast ones cannot compute a call.
#pragma once

#include <string>

namespace linnet::cuda {

// Says, once for each operation and reason, that its plain kernels compute because its fast ones
// (`which`) do not cover `why`. Throws UsageError where tensor cores were asked for.
void use_plain_kernels(const std::string& operation, const std::string& why,
                       const std::string& which = "kernels on tensor cores");

}  // namespace linnet::cuda
