# Installs the build BUILD of SOURCE into a fresh prefix, moves that, builds a plugin against it, and runs
# both. Fails with the first command that fails.
set(work ${BUILD}/install_test)
file(REMOVE_RECURSE ${work})

# run(COMMAND...): its output is left in `output`.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nfailed with ${code}:\n${output}\n${errors}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

function(expect text part)
  string(FIND "${text}" "${part}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "expected '${part}' in:\n${text}")
  endif()
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/first)
file(RENAME ${work}/first ${work}/prefix)
file(GLOB_RECURSE package ${work}/prefix/*.cmake)
foreach(file ${package})
  file(READ ${file} text)
  foreach(folder ${SOURCE} ${BUILD})
    if(text MATCHES "${folder}[/\";]")
      message(FATAL_ERROR "${file} names ${folder}, which need not exist where linnet is installed")
    endif()
  endforeach()
endforeach()

run(${CMAKE_COMMAND} -S ${SOURCE}/tests/plugin -B ${work}/plugin -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_PREFIX_PATH=${work}/prefix -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
run(${CMAKE_COMMAND} --build ${work}/plugin --target fading_linear)

set(linnet ${work}/prefix/bin/linnet)
run(${linnet} --version)
expect("${output}" ".")
# The program loads the library beside it, not that of the build.
run(ldd ${linnet})
expect("${output}" "${work}/prefix/")
run(${linnet} attention list --plugin ${work}/plugin/libfading_linear.so)
expect("${output}" "fading_linear")
run(${linnet} recipe check --allow-missing-data ${work}/prefix/share/linnet/recipes/quickstart/lm.yaml
  ${work}/prefix/share/linnet/recipes/lavo/books_bytes.yaml)
file(REMOVE_RECURSE ${work})
