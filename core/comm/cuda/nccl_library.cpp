#include "core/comm/cuda/nccl_library.h"

#include <dlfcn.h>

#include <type_traits>

#include "core/comm/cuda/nccl.h"
#include "core/error.h"

namespace linnet::cuda {
namespace {

NcclLibrary load() {
  NcclLibrary library;
  const std::string name = concat("libnccl.so.", NCCL_MAJOR);
  void* found = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (found == nullptr) {
    const char* reason = dlerror();
    library.problem =
        concat("NCCL cannot be loaded (", reason == nullptr ? name : std::string(reason),
               "); install it or add its folder to LD_LIBRARY_PATH");
    return library;
  }
  const auto get = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(found, symbol));
    if (function == nullptr && library.problem.empty()) {
      library.problem = concat(name, " has no ", symbol, "; install a newer NCCL");
    }
  };
  get(library.version, "ncclGetVersion");
  get(library.error_string, "ncclGetErrorString");
  get(library.unique_id, "ncclGetUniqueId");
  get(library.init_rank, "ncclCommInitRankConfig");
  get(library.async_error, "ncclCommGetAsyncError");
  get(library.destroy, "ncclCommDestroy");
  get(library.abort, "ncclCommAbort");
  get(library.reduce_scatter, "ncclReduceScatter");
  get(library.all_gather, "ncclAllGather");
  get(library.broadcast, "ncclBroadcast");
  get(library.send, "ncclSend");
  get(library.receive, "ncclRecv");
  return library;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary loaded = load();
  return loaded;
}

std::string nccl_problem() {
  return nccl_library().problem;
}

std::string nccl_version() {
  int version = 0;
  const NcclLibrary& library = nccl_library();
  if (!library.problem.empty() || library.version(&version) != ncclSuccess) return "";
  return concat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

}  // namespace linnet::cuda
