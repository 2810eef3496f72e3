// A checkpoint's manifest, a line "====" and best.json. The hash of the manifest is always right:
// whoever changes a manifest can change it too.
#include "core/hash.h"
#include "recipes/engine/checkpoint_store.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"

namespace linnet::fuzz {
namespace {

template <typename Body>
void refusing(const Body& body) {
  try {
    body();
  } catch (const Error&) {
  }
}

}  // namespace

void read_input(std::string_view input) {
  const auto [manifest, best] = two_files(input);
  const std::string folder = "run/checkpoints/step-00000012";
  MemoryFiles files;
  files[folder + "/manifest.json"] = manifest;
  files[folder + "/manifest.xxh3"] = hash128_hex(manifest) + "\n";
  files[folder + "/weights.h5"] = "weights";
  files[folder + "/state.json"] = "{}";
  files["run/checkpoints/best.json"] = best;
  refusing([&] {
    const Checkpoint checkpoint = load_checkpoint(folder);
    expect(verify_checkpoint(folder).step == checkpoint.step, "both readers find the same step");
    for (const auto& [name, bytes] : checkpoint.files)
      expect(bytes == files[join_path(folder, name)], "contents are those of the file");
  });
  refusing([] { CheckpointStore("run").best(); });
  find_checkpoint("run");
}

}  // namespace linnet::fuzz
