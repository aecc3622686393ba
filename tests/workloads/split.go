// split TURNS: two goroutines, each with three functions whose work is as 1:3:7.
//
//	goexit -> main.run -> main.one, main.three, main.seven -> main.work
package main

import "os"

//go:noinline
func work(n int) uint64 {
	state := uint64(88172645463325252)
	for i := 0; i < n; i++ {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
	}
	return state
}

//go:noinline
func one(n int) uint64 { return work(n) + 1 }

//go:noinline
func three(n int) uint64 { return work(3*n) + 3 }

//go:noinline
func seven(n int) uint64 { return work(7*n) + 7 }

//go:noinline
func run(turns int, done chan uint64) {
	sum := uint64(0)
	for i := 0; i < turns; i++ {
		sum += one(100003) + three(100003) + seven(100003)
	}
	done <- sum
}

func main() {
	turns := 0
	for _, digit := range os.Args[1] {
		turns = 10*turns + int(digit-'0')
	}
	done := make(chan uint64)
	for i := 0; i < 2; i++ {
		go run(turns, done)
	}
	println(<-done + <-done)
}
