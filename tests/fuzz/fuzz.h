// What the fuzz targets share. A target defines read_input; fuzz.cpp has the entry point of
// libFuzzer.
#pragma once

#include <string_view>
#include <utility>

namespace linnet::fuzz {

// Reads one input in the way of the target. An Error is a fair answer to an input; any other
// exception, a failed expect(), and more processor time than the limit are findings.
void read_input(std::string_view input);

// Ends the process with a message unless `holds`: what a reader promises of what it accepts.
void expect(bool holds, std::string_view promise);

// The parts before and after the first line "====": inputs that stand for two files.
std::pair<std::string_view, std::string_view> two_files(std::string_view input);

}  // namespace linnet::fuzz
