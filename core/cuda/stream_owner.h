// Which thread submits to a device's one stream.
#pragma once

namespace linnet::cuda {

// Throws Error unless the stream of that device is this thread's. The first thread that submits
// owns the stream until it hands it over: a capture would record another thread's work too, and
// the order of two threads' work would be chance.
void require_stream_owner(int device);
// From now on the stream is nobody's.
void disown_stream(int device);

}  // namespace linnet::cuda
