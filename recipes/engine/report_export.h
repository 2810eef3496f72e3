// Compared tables as text, HTML, JSON, CSV and LaTeX.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"
#include "recipes/engine/report_published.h"
#include "recipes/engine/report_table.h"

namespace linnet {

// For people: the table's compact one, or a row per figure, "57.10 ± 0.21" over n seeds beside the
// paper's, or the state of the cell. Of the settings it has those parts that tell its rows apart.
Table readable(const ComparedTable& table);

// The published tables, those of speed, and those of other runs in which a figure is a mean over
// several seeds or RCP (without these they say no more than the table of evaluations).
std::string comparison_text(const std::vector<ComparedTable>& tables);
// The same as a section of the page; "" without such tables.
std::string comparison_html(const std::vector<ComparedTable>& tables);

// Everything, with all digits. {"tables": [{"name", "published", "note", "cells": [...]}], "runs":
// [...]}; engine/README.md explains the members.
JsonValue report_json(const std::vector<RunData>& runs, const std::vector<ComparedTable>& tables);
// The same as lines: one per cell, then one per fact of a run, whose table is "runs".
std::string report_csv(const std::vector<RunData>& runs, const std::vector<ComparedTable>& tables);
// A tabular for each table, and one of the runs; without packages.
std::string report_latex(const std::vector<RunData>& runs,
                         const std::vector<ComparedTable>& tables);

}  // namespace linnet
