// Progress of preparing text: reading, hashing or encoding the files of a split.
#pragma once

#include <string>
#include <vector>

#include "core/progress.h"
#include "data/text_sources.h"

namespace linnet {

// While one lives, progress lines tell how far its files are:
// "encoding train: books/a.txt, 12 of 400 MB, 14.3 MB/s, 3 %, ETA 0:26".
class Preparation {
 public:
  // `doing`: "encoding train". The files come in their order.
  Preparation(std::string doing, const std::vector<SourceFile>& files,
              ProgressOutput output = standard_progress_output());
  ~Preparation();
  Preparation(const Preparation&) = delete;
  Preparation& operator=(const Preparation&) = delete;

  // The file before, if any, is done; this one begins.
  void begin(const SourceFile& file);
  // So many bytes of the current piece of the file are done.
  void report(size_t bytes);
  // The current piece, of so many bytes, is done; another begins.
  void end_piece(size_t bytes);

 private:
  std::string doing_, name_;
  double total_ = 0, before_ = 0, current_ = 0;  // bytes: of all files, of those done, of this one
  double pieces_ = 0;                            // bytes of this one's pieces that are done
  Preparation* outer_;
  WorkProgress progress_;
};

// Tells the calling thread's innermost Preparation, if there is one, how far its current piece is:
// for encoders and whatever else reads long texts.
void report_bytes_done(size_t bytes);

}  // namespace linnet
