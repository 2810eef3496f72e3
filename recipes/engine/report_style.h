// The style sheet of report.html.
#pragma once

namespace linnet {

// CSS with light and dark colours, chosen by the reader's system.
extern const char* const kReportStyle;

}  // namespace linnet
