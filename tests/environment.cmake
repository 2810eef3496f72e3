# Read by CTest: what every test runs with. Not an argument of gtest_discover_tests, which takes lists
# apart.
set(threads 2)
if(DEFINED ENV{LINNET_TEST_THREADS})
  set(threads $ENV{LINNET_TEST_THREADS})
endif()
foreach(folder core autograd layers attention optim data recipes tools cuda)
  if(DEFINED test_${folder}_TESTS)
    set_tests_properties(${test_${folder}_TESTS} PROPERTIES TIMEOUT 600
      ENVIRONMENT "OMP_NUM_THREADS=${threads};OMP_WAIT_POLICY=passive;ASAN_OPTIONS=allocator_may_return_null=1;UBSAN_OPTIONS=print_stacktrace=1")
  endif()
endforeach()
if(DEFINED test_cuda_TESTS)
  set_tests_properties(${test_cuda_TESTS} PROPERTIES LABELS cuda)
endif()
