// Two threads that give one, three and seven parts of their CPU time to three methods, in so many rounds, and others that
// wait in every way that Java has; at the end, as JSON, how long each really was. With a second argument it stays until
// its input ends.

import java.lang.management.ManagementFactory;
import java.net.ServerSocket;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.locks.LockSupport;

public class Split {
    static final Object lock = new Object();
    static final Map<String, Double> seconds = new TreeMap<>();
    static volatile long sink;
    static int rounds;

    static long cpu() { return ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime(); }

    static void told(String name, long ns) {
        synchronized (seconds) { seconds.merge(name, ns * 1e-9, Double::sum); }
    }

    static void one(long end) {
        long x = 1;
        do { for (int i = 0; i < 20000; i++) x = x * 31 + (x >> 3); sink = x; } while (cpu() < end);
    }

    static void three(long end) {
        long x = 2;
        do { for (int i = 0; i < 20000; i++) x = x * 37 + (x >> 3); sink = x; } while (cpu() < end);
    }

    static void seven(long end) {
        long x = 3;
        do { for (int i = 0; i < 20000; i++) x = x * 41 + (x >> 3); sink = x; } while (cpu() < end);
    }

    static void split() {
        for (int i = 0; i < rounds; i++) {
            long begin = cpu();
            one(begin + 30_000_000L);
            long first = cpu();
            three(first + 90_000_000L);
            long second = cpu();
            seven(second + 210_000_000L);
            told("one", first - begin);
            told("three", second - first);
            told("seven", cpu() - second);
        }
    }

    static void sleeps() { try { Thread.sleep(900); } catch (InterruptedException e) { sink++; } }

    static void waits() { synchronized (lock) { try { lock.wait(1100); } catch (InterruptedException e) { sink++; } } }

    static void parks() { LockSupport.parkNanos(700_000_000L); }

    static void accepts() {
        try (ServerSocket server = new ServerSocket(0)) {
            server.setSoTimeout(1300);
            server.accept();
        } catch (java.io.IOException e) {
            sink++;
        }
    }

    static Runnable timed(String name, Runnable wait) {
        return () -> {
            long begin = System.nanoTime();
            wait.run();
            told(name, System.nanoTime() - begin);
        };
    }

    public static void main(String[] arguments) throws Exception {
        rounds = Integer.parseInt(arguments[0]);
        Runnable[] all = {
            Split::split, Split::split, timed("sleeps", Split::sleeps), timed("waits", Split::waits),
            timed("parks", Split::parks), timed("accepts", Split::accepts)
        };
        Thread[] threads = new Thread[all.length];
        for (int i = 0; i < all.length; i++) (threads[i] = new Thread(all[i])).start();
        for (Thread thread : threads) thread.join();
        StringBuilder text = new StringBuilder();
        seconds.forEach((name, value) -> text.append(text.length() > 0 ? ", \"" : "{\"").append(name).append("\": ").append(value));
        System.out.println(text.append("}"));
        if (arguments.length > 1) System.in.read();
    }
}
