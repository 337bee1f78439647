! The sum of a vector over all ranks, from Fortran: C functions by iso_c_binding.
!
!   gfortran all_reduce.f90 $(pkg-config --libs antiphon) -o all_reduce
!   mpirun -n 4 ./all_reduce
module antiphon
  use, intrinsic :: iso_c_binding
  implicit none
  ! The constants of antiphon.h, in their order.
  enum, bind(c)
    enumerator :: ANTIPHON_F32, ANTIPHON_F64, ANTIPHON_I32, ANTIPHON_I64, ANTIPHON_U8, ANTIPHON_F16, ANTIPHON_BF16
  end enum
  enum, bind(c)
    enumerator :: ANTIPHON_SUM, ANTIPHON_PROD, ANTIPHON_MIN, ANTIPHON_MAX, ANTIPHON_AVG
  end enum

  interface
    integer(c_int) function antiphon_comm_from_env(comm) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), intent(out) :: comm
    end function
    integer(c_int) function antiphon_comm_rank(comm, rank) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: comm
      integer(c_int), intent(out) :: rank
    end function
    integer(c_int) function antiphon_comm_size(comm, size) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: comm
      integer(c_int), intent(out) :: size
    end function
    integer(c_int) function antiphon_all_reduce(send, recv, count, dtype, op, comm) bind(c)
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), value :: send, recv, comm
      integer(c_size_t), value :: count
      integer(c_int), value :: dtype, op
    end function
    integer(c_int) function antiphon_comm_free(comm) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: comm
    end function
  end interface
end module

program all_reduce
  use antiphon
  implicit none
  integer, parameter :: count = 100000
  real(c_double), target :: x(count)
  type(c_ptr) :: comm
  integer(c_int) :: rank, ranks

  call check(antiphon_comm_from_env(comm))
  call check(antiphon_comm_rank(comm, rank))
  call check(antiphon_comm_size(comm, ranks))
  x = rank + 1
  ! The same address twice means in place.
  call check(antiphon_all_reduce(c_loc(x), c_loc(x), int(count, c_size_t), ANTIPHON_F64, ANTIPHON_SUM, comm))
  if (any(abs(x - ranks * (ranks + 1) / 2) > 0)) error stop "the sum is wrong"
  print '(a,i0,a,f0.1)', "rank ", rank, ": sum ", x(count)
  call check(antiphon_comm_free(comm))
contains
  subroutine check(result)
    integer(c_int), intent(in) :: result
    if (result /= 0) error stop "a call of antiphon failed"
  end subroutine
end program
