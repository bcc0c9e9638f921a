import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.bson.BinData;
import de.bwaldvogel.mongo.bson.Document;
import de.bwaldvogel.mongo.exception.MongoServerError;
import de.bwaldvogel.mongo.wire.message.MongoMessage;
import io.netty.channel.Channel;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import javax.crypto.Mac;
import javax.crypto.SecretKeyFactory;
import javax.crypto.spec.PBEKeySpec;
import javax.crypto.spec.SecretKeySpec;
import org.h2.mvstore.MVStore;

/**
 * In the place of mongod in docker-compose.yml: {@code Mongod --dbpath=D --replSet=NAME --keyFile=F ...}.
 *
 * As mongod with a key file: no member is primary before replSetInitiate; no command is answered without a password
 * (SCRAM-SHA-256), but that the first user may be made in "admin" from loopback. What it acknowledges survives a kill.
 */
final class Mongod {
    private static final int ITERATIONS = 4096;
    private static final Set<String> OPEN =
            Set.of("hello", "ismaster", "saslStart", "saslContinue", "ping", "buildInfo", "buildinfo", "endSessions");
    private static final Set<String> SETUP = Set.of("replSetInitiate", "createUser");

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

    /** A login under way, or done. */
    private static final class Login {
        String user;
        String firstMessages;
        String nonce;
        boolean done;
    }

    private static final class Replica extends H2Backend {
        private final String set;
        private final Path file;
        private final Properties kept = new Properties();
        private final Map<Channel, Login> logins = new ConcurrentHashMap<>();

        Replica(MVStore store, String set, Path file) throws IOException {
            super(store);
            this.set = set;
            this.file = file;
            if (Files.exists(file)) {
                try (var in = Files.newInputStream(file)) {
                    kept.load(in);
                }
            }
        }

        private synchronized void keep(String name, String value) {
            kept.setProperty(name, value);
            Path unfinished = file.resolveSibling(file.getFileName() + ".new");
            try {
                try (var out = Files.newOutputStream(unfinished)) {
                    kept.store(out, null);
                }
                Files.move(unfinished, file, StandardCopyOption.ATOMIC_MOVE);
            } catch (IOException error) {
                throw new MongoServerError(8, error.toString());
            }
        }

        @Override
        public Document handleMessage(MongoMessage message) {
            Document command = message.getDocument();
            String name = command.keySet().iterator().next();
            Document own = answer(message.getChannel(), message.getDatabaseName(), name, command);
            if (own != null) {
                return own;
            }
            Document answer = super.handleMessage(message);
            commit(); // before each answer
            return name.equalsIgnoreCase("hello") || name.equalsIgnoreCase("ismaster") ? hello(answer, command) : answer;
        }

        @Override
        public Document handleCommand(Channel channel, String database, String name, Document command) {
            Document own = answer(channel, database, name, command);
            if (own != null) {
                return own;
            }
            Document answer = super.handleCommand(channel, database, name, command);
            return name.equalsIgnoreCase("hello") || name.equalsIgnoreCase("ismaster") ? hello(answer, command) : answer;
        }

        @Override
        public void handleClose(Channel channel) {
            logins.remove(channel);
            super.handleClose(channel);
        }

        /** Null: the library answers. */
        private Document answer(Channel channel, String database, String name, Document command) {
            if (name.equals("saslStart")) {
                return saslStart(channel, database, command);
            }
            if (name.equals("saslContinue")) {
                return saslContinue(channel, command);
            }
            if (OPEN.contains(name) || name.equals("isMaster")) {
                return null;
            }
            Login login = logins.get(channel);
            boolean first = SETUP.contains(name) && database.equals("admin") && fromLoopback(channel) && users() == 0;
            if (!first && (login == null || !login.done)) {
                return failure(13, "Unauthorized", "command " + name + " requires authentication");
            }
            if (name.equals("replSetInitiate")) {
                return initiate((Document) command.get(name));
            }
            if (!kept.containsKey("member")) {
                return failure(10107, "NotWritablePrimary", "not primary");
            }
            return name.equals("createUser") ? createUser(database, command) : null;
        }

        private long users() {
            return kept.stringPropertyNames().stream().filter(name -> name.startsWith("user:")).count();
        }

        private Document initiate(Document settings) {
            if (kept.containsKey("member")) {
                return failure(23, "AlreadyInitialized", "already initialized");
            }
            if (!set.equals(settings.get("_id"))) {
                return failure(93, "InvalidReplicaSetConfig", "the set is named " + set);
            }
            Document member = (Document) ((List<?>) settings.get("members")).get(0);
            keep("member", (String) member.get("host"));
            return new Document("ok", 1.0);
        }

        private Document createUser(String database, Document command) {
            String name = database + "." + command.get("createUser");
            byte[] salt = new byte[28];
            new SecureRandom().nextBytes(salt);
            Base64.Encoder base64 = Base64.getEncoder();
            try {
                PBEKeySpec spec = new PBEKeySpec(((String) command.get("pwd")).toCharArray(), salt, ITERATIONS, 256);
                byte[] salted = SecretKeyFactory.getInstance("PBKDF2WithHmacSHA256").generateSecret(spec).getEncoded();
                byte[] stored = MessageDigest.getInstance("SHA-256").digest(hmac(salted, "Client Key"));
                byte[] server = hmac(salted, "Server Key");
                keep("user:" + name, base64.encodeToString(salt) + " " + base64.encodeToString(stored) + " "
                        + base64.encodeToString(server));
            } catch (GeneralSecurityException error) {
                throw new IllegalStateException(error);
            }
            return new Document("ok", 1.0);
        }

        private Document hello(Document answer, Document command) {
            String member = kept.getProperty("member");
            if (member == null) {
                answer.append("isreplicaset", true).append("ismaster", false).append("isWritablePrimary", false);
            } else {
                answer.append("setName", set).append("setVersion", 1).append("hosts", List.of(member)).append("me", member)
                        .append("primary", member).append("ismaster", true).append("isWritablePrimary", true)
                        .append("secondary", false);
            }
            if (command.containsKey("saslSupportedMechs")) {
                answer.append("saslSupportedMechs", List.of("SCRAM-SHA-256"));
            }
            return answer;
        }

        private Document saslStart(Channel channel, String database, Document command) {
            String[] parts = text(command).split(",", 3); // n,,n=user,r=nonce
            String first = parts.length == 3 ? parts[2] : "";
            String user = first.replaceAll("^n=([^,]*),.*", "$1");
            String known = kept.getProperty("user:" + database + "." + user);
            if (!"SCRAM-SHA-256".equals(command.get("mechanism")) || known == null) {
                return failure(18, "AuthenticationFailed", "Authentication failed.");
            }
            Login login = new Login();
            login.user = database + "." + user;
            login.nonce = first.replaceAll(".*,r=", "") + Long.toHexString(new SecureRandom().nextLong());
            String answer = "r=" + login.nonce + ",s=" + known.split(" ")[0] + ",i=" + ITERATIONS;
            login.firstMessages = first + "," + answer;
            logins.put(channel, login);
            return sasl(answer, false);
        }

        private Document saslContinue(Channel channel, Document command) {
            Login login = logins.get(channel);
            String message = text(command);
            int proofAt = message.indexOf(",p=");
            if (login == null || proofAt < 0 || !message.contains("r=" + login.nonce + ",p=")) {
                return failure(18, "AuthenticationFailed", "Authentication failed.");
            }
            String[] known = kept.getProperty("user:" + login.user).split(" ");
            byte[] stored = Base64.getDecoder().decode(known[1]);
            String signed = login.firstMessages + "," + message.substring(0, proofAt);
            try {
                byte[] key = Base64.getDecoder().decode(message.substring(proofAt + 3));
                byte[] signature = hmac(stored, signed);
                for (int at = 0; at < key.length; at++) {
                    key[at] ^= signature[at];
                }
                if (!MessageDigest.isEqual(MessageDigest.getInstance("SHA-256").digest(key), stored)) {
                    return failure(18, "AuthenticationFailed", "Authentication failed.");
                }
                login.done = true;
                byte[] proof = hmac(Base64.getDecoder().decode(known[2]), signed);
                return sasl("v=" + Base64.getEncoder().encodeToString(proof), true);
            } catch (GeneralSecurityException error) {
                throw new IllegalStateException(error);
            }
        }

        private static String text(Document command) {
            Object payload = command.get("payload");
            byte[] bytes = payload instanceof BinData data ? data.getData() : (byte[]) payload;
            return new String(bytes, StandardCharsets.UTF_8);
        }

        private static Document sasl(String payload, boolean done) {
            return new Document("conversationId", 1).append("done", done)
                    .append("payload", new BinData(payload.getBytes(StandardCharsets.UTF_8))).append("ok", 1.0);
        }

        private static Document failure(int code, String name, String message) {
            return new Document("ok", 0.0).append("errmsg", message).append("code", code).append("codeName", name);
        }

        private static boolean fromLoopback(Channel channel) {
            return ((InetSocketAddress) channel.remoteAddress()).getAddress().isLoopbackAddress();
        }

        private static byte[] hmac(byte[] key, String text) throws GeneralSecurityException {
            Mac mac = Mac.getInstance("HmacSHA256");
            mac.init(new SecretKeySpec(key, "HmacSHA256"));
            return mac.doFinal(text.getBytes(StandardCharsets.UTF_8));
        }
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> options = new ConcurrentHashMap<>();
        for (String arg : args) {
            String[] pair = arg.split("=", 2);
            options.put(pair[0], pair.length == 2 ? pair[1] : "");
        }
        if (!Files.isReadable(Path.of(options.get("--keyFile")))) {
            throw new IOException("cannot read " + options.get("--keyFile"));
        }
        Path folder = Path.of(options.get("--dbpath"));
        MVStore store = new MVStore.Builder().fileName(folder.resolve("mongo.db").toString()).autoCommitDisabled().open();
        Replica backend = new Replica(store, options.get("--replSet"), folder.resolve("replica.properties"));
        backend.version(new Version5());
        MongoServer server = new MongoServer(backend);
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdownNow));
        server.bind(new InetSocketAddress("0.0.0.0", 27017));
        Thread.currentThread().join();
    }
}
