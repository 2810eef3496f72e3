# Read by CTest: what every test runs with. Not an argument of gtest_discover_tests, which takes lists
# apart.
set(threads 2)
if(DEFINED ENV{LINNET_TEST_THREADS})
  set(threads $ENV{LINNET_TEST_THREADS})
endif()
foreach(folder core autograd layers attention optim data recipes tools cuda)
  foreach(test ${test_${folder}_TESTS})
    # The suite's cases are so small that waking a second thread costs more than their work. Tests of
    # the primitives vary the threads, and those that train every mechanism have two.
    set(own_threads ${threads})
    if(test MATCHES "/(Cuda)?Conformance\\." AND NOT DEFINED ENV{LINNET_TEST_THREADS})
      set(own_threads 1)
    endif()
    set_tests_properties(${test} PROPERTIES TIMEOUT 600
      ENVIRONMENT "OMP_NUM_THREADS=${own_threads};OMP_WAIT_POLICY=passive;ASAN_OPTIONS=allocator_may_return_null=1;UBSAN_OPTIONS=print_stacktrace=1")
  endforeach()
endforeach()
foreach(test ${test_tools_TESTS})
  if(test MATCHES "^(PluginCli|NewMechanism)\\.")
    set_tests_properties(${test} PROPERTIES FIXTURES_REQUIRED plugins)
  endif()
endforeach()
if(DEFINED test_cuda_TESTS)
  set_tests_properties(${test_cuda_TESTS} PROPERTIES LABELS cuda)
endif()
