# Installs the build BUILD of SOURCE into a fresh prefix, moves that, writes a plugin and builds it against it,
# and runs both. Fails with the first command that fails.
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

set(linnet ${work}/prefix/bin/linnet)
run(${linnet} --version)
expect("${output}" ".")
# The program loads the library beside it, not that of the build.
run(ldd ${linnet})
expect("${output}" "${work}/prefix/")
# A plugin as `attention new` writes it builds, passes the suite and trains.
set(own ${work}/own)
run(${linnet} attention new own_mix --plugin ${own})
expect("${output}" "-DCMAKE_PREFIX_PATH=${work}/prefix ")
expect("${output}" "${linnet} attention check own_mix")
run(${CMAKE_COMMAND} -S ${own} -B ${own}/build -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_PREFIX_PATH=${work}/prefix -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
run(${CMAKE_COMMAND} --build ${own}/build)
run(${linnet} attention check own_mix --plugin ${own}/build/libown_mix.so)
expect("${output}" ", 0 failed")
run(${linnet} train ${own}/own_mix.yaml data.cache=false train.max_steps=2 evaluate.every_steps=0
  generate.tokens=0 --out ${work}/run --plugin ${own}/build/libown_mix.so)
# In a checkout the same code compiles between its lists.
file(COPY ${SOURCE}/attention/registry.cpp ${SOURCE}/attention/README.md DESTINATION ${work}/tree/attention)
file(COPY ${SOURCE}/recipes/quickstart/compare.yaml DESTINATION ${work}/tree/recipes/quickstart)
run(${CMAKE_COMMAND} -E chdir ${work}/tree ${linnet} attention new own_mix)
run(${COMPILER} -std=c++20 -march=native -Wall -Wextra -Werror -Wno-psabi -fsyntax-only
  -I ${work}/tree -I ${work}/prefix/include/linnet ${work}/tree/attention/own_mix/own_mix.cpp)
run(${linnet} recipe check --allow-missing-data ${work}/prefix/share/linnet/recipes/quickstart/lm.yaml
  ${work}/prefix/share/linnet/recipes/lavo/books_bytes.yaml)
file(REMOVE_RECURSE ${work})
