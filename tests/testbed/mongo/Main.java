import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import java.net.InetSocketAddress;
import java.util.List;
import org.h2.mvstore.MVStore;

/**
 * A server that speaks MongoDB's wire protocol, for tests: {@code Main FILE PORT} on loopback, "ready PORT" on stdout.
 *
 * What it acknowledges is in the file: the store is committed before each answer, never in between on its own. So a
 * kill -9 loses nothing acknowledged, which is what the tests of durability rest on. It ends when stdin is closed: with
 * the test run, however that ended.
 */
final class Main {
    /** Of wire version 13, for pymongo wants 9 or later and the library knows 8 at most. */
    private static final class Version5 implements MongoVersion {
        @Override
        public List<Integer> getVersionArray() {
            return List.of(5, 0, 0);
        }

        @Override
        public int getWireVersion() {
            return 13;
        }
    }

    private static final class Durable extends H2Backend {
        Durable(MVStore store) {
            super(store);
        }

        @Override
        public Document handleMessage(MongoMessage message) {
            Document answer = super.handleMessage(message);
            if (getMvStore().hasUnsavedChanges()) {
                commit();
            }
            return answer;
        }
    }

    public static void main(String[] args) throws Exception {
        MVStore store = new MVStore.Builder().fileName(args[0]).autoCommitDisabled().open();
        H2Backend backend = new Durable(store);
        backend.version(new Version5());
        MongoServer server = new MongoServer(backend);
        server.bind(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[1])));
        System.out.println("ready " + server.getLocalAddress().getPort());
        while (System.in.read() >= 0) {}
        server.shutdownNow();
    }
}
