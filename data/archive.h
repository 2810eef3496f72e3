// Archives as data: tar, tar.gz, tar.xz and zip files, unpacked once into a cache.
#pragma once

#include <cstdint>
#include <string>

namespace linnet {

// What an archive may hold at most. The ratio counts from `free_bytes` of contents on.
struct ArchiveLimits {
  uint64_t bytes = uint64_t{64} << 30;  // of all members
  uint64_t members = 1'000'000;
  uint64_t ratio = 250;  // bytes of contents per byte of archive
  uint64_t free_bytes = uint64_t{64} << 20;
  uint64_t name_bytes = 1024;
};

// The folder of an archive's contents, or `path` itself where that is no archive and no folder that
// holds one and nothing else. The first bytes of a file say whether it is one: a tar, plain or
// compressed with gzip or xz, or a zip.
//
// Contents lie in `cache_folder`/archive-HASH, the hash of the archive's bytes. They are unpacked
// into a temporary folder, which gets that name when it is complete: processes may unpack one
// archive at once, and a folder that lost files since is unpacked again. Where all members lie
// below one folder ("aclImdb/..."), that folder is returned, unless its name is that of a split
// ("train"): a path may name a folder or its archive.
//
// Only folders and regular files are made, with new permissions. Throws Error naming the archive
// and the member for names that leave the folder (absolute, "..") or come twice, links, devices,
// pipes, encryption, more than the limits, more than fits on the disk, damage and truncation; also
// for a file that is named like an archive (.tar, .tar.gz, .tgz, .tar.xz, .txz, .zip) and is none.
// Nothing is left behind then. UsageError when `cache_folder` is needed and "". For one thread at a
// time.
std::string unpacked(const std::string& path, const std::string& cache_folder,
                     const ArchiveLimits& limits = {});

}  // namespace linnet
