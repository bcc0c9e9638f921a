import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import java.net.InetSocketAddress;
import java.util.List;
import org.h2.mvstore.MVStore;

/**
 * A server that speaks MongoDB's wire protocol, for tests: {@code Main FILE PORT [FAULT]} on loopback, "ready PORT" on stdout.
 *
 * What it acknowledges is in the file: the store is committed before each answer, never in between on its own. So a
 * kill -9 loses nothing acknowledged, which is what the tests of durability rest on. It ends when stdin is closed: with
 * the test run, however that ended. FAULT is what a server that Weft must refuse does: two-winners (a
 * replace looks at no revision), no-replica-set (no linearizable reads).
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
        private final String fault;

        Durable(MVStore store, String fault) {
            super(store);
            this.fault = fault;
        }

        @Override
        public Document handleMessage(MongoMessage message) {
            Document command = message.getDocument();
            if (fault.equals("two-winners") && command.containsKey("update")) {
                for (Object update : (Iterable<?>) command.get("updates")) {
                    ((Document) ((Document) update).get("q")).remove("rev");
                }
            }
            if (fault.equals("no-replica-set") && String.valueOf(command.get("readConcern")).contains("linearizable")) {
                return new Document("ok", 0).append("code", 123).append("errmsg", "no replica set: no such read");
            }
            Document answer = super.handleMessage(message);
            commit(); // even where nothing seems unsaved: another's commit, which has this in it, may still be at work
            return answer;
        }
    }

    public static void main(String[] args) throws Exception {
        MVStore store = new MVStore.Builder().fileName(args[0]).autoCommitDisabled().open();
        H2Backend backend = new Durable(store, args.length > 2 ? args[2] : "");
        backend.version(new Version5());
        MongoServer server = new MongoServer(backend);
        server.bind(new InetSocketAddress("127.0.0.1", Integer.parseInt(args[1])));
        System.out.println("ready " + server.getLocalAddress().getPort());
        while (System.in.read() >= 0) {}
        server.shutdownNow();
    }
}
