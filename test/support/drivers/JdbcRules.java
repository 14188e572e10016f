import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyManager;

/**
 * Rules about the JDBC driver, checked against the pooler at the host, port, database, user and
 * password of the arguments. Reports on standard output as test/support/programs.ts reads it.
 */
public class JdbcRules {
  private interface Rule {
    void check() throws Exception;
  }

  private static String url;
  private static String user;
  private static String password;

  public static void main(String[] args) {
    url = args[0];
    user = args[1];
    password = args[2];
    Map<String, Rule> rules = new LinkedHashMap<>();
    rules.put("statements prepared on the server at first use serve every connection", JdbcRules::prepared);
    rules.put("values of many types pass in binary", JdbcRules::values);
    rules.put("batches are carried out whole, also when rewritten to fewer statements", JdbcRules::batches);
    rules.put("transactions and savepoints are kept or undone as told", JdbcRules::transactions);
    rules.put("autosave lets a transaction go on after an error", JdbcRules::autosave);
    rules.put("a fetch size hands rows out in portions from one portal", JdbcRules::fetchSize);
    rules.put("COPY moves rows in and out", JdbcRules::copy);
    rules.put("a cancelled statement fails with 57014 and its connection goes on", JdbcRules::cancel);
    rules.put("metadata and generated keys are told", JdbcRules::metadata);
    rules.put("the simple protocol works too", JdbcRules::simple);
    rules.put("sixteen threads share the servers without mixing rows", JdbcRules::threads);
    System.out.println("plan " + rules.size());
    for (Map.Entry<String, Rule> entry : rules.entrySet()) {
      try {
        entry.getValue().check();
        System.out.println("ok " + entry.getKey());
      } catch (Throwable problem) {
        System.out.println("not ok " + entry.getKey());
        problem.printStackTrace(System.out);
      }
    }
  }

  private static Connection connect(String... options) throws SQLException {
    List<String> all = new ArrayList<>(List.of("user=" + user, "password=" + password));
    all.add("prepareThreshold=1");
    all.addAll(Arrays.asList(options));
    return DriverManager.getConnection(url + "?" + String.join("&", all));
  }

  private static void equal(Object found, Object wanted) {
    if (!wanted.equals(found)) throw new AssertionError("found " + found + ", wanted " + wanted);
  }

  private static void fails(String sqlstate, Rule rule) throws Exception {
    try {
      rule.check();
    } catch (SQLException error) {
      equal(error.getSQLState(), sqlstate);
      return;
    }
    throw new AssertionError("no error, wanted " + sqlstate);
  }

  private static int number(Connection connection, String sql) throws SQLException {
    try (Statement statement = connection.createStatement();
        ResultSet rows = statement.executeQuery(sql)) {
      rows.next();
      return rows.getInt(1);
    }
  }

  private static void run(Connection connection, String... statements) throws SQLException {
    try (Statement statement = connection.createStatement()) {
      for (String sql : statements) statement.execute(sql);
    }
  }

  private static void prepared() throws Exception {
    List<Connection> connections = new ArrayList<>();
    List<PreparedStatement> sums = new ArrayList<>();
    List<PreparedStatement> own = new ArrayList<>();
    for (int who = 0; who < 8; who++) {
      Connection connection = connect();
      connections.add(connection);
      sums.add(connection.prepareStatement("SELECT ?::int + 1, ?::text"));
      own.add(connection.prepareStatement("SELECT " + who + ", ?::int"));
    }
    for (int turn = 0; turn < 12; turn++) {
      for (int who = 0; who < 8; who++) {
        sums.get(who).setInt(1, turn);
        sums.get(who).setString(2, "w" + who);
        try (ResultSet rows = sums.get(who).executeQuery()) {
          rows.next();
          equal(rows.getInt(1), turn + 1);
          equal(rows.getString(2), "w" + who);
        }
        own.get(who).setInt(1, turn);
        try (ResultSet rows = own.get(who).executeQuery()) {
          rows.next();
          equal(rows.getInt(1), who);
          equal(rows.getInt(2), turn);
        }
      }
    }
    for (PreparedStatement statement : sums) statement.close();
    for (Connection connection : connections) {
      equal(number(connection, "SELECT 5"), 5);
      connection.close();
    }
  }

  private static void values() throws Exception {
    try (Connection connection = connect();
        PreparedStatement statement =
            connection.prepareStatement("SELECT ?::int8, ?::float8, ?::bytea, ?::text, ?::int[], ?::date")) {
      byte[] bytes = {0, 1, (byte) 0xff};
      for (int turn = 0; turn < 4; turn++) {
        statement.setLong(1, Long.MIN_VALUE);
        statement.setDouble(2, 0.1);
        statement.setBytes(3, bytes);
        statement.setString(4, "Ünï – 😀");
        statement.setArray(5, connection.createArrayOf("int4", new Object[] {1, null, 3}));
        statement.setNull(6, java.sql.Types.DATE);
        try (ResultSet rows = statement.executeQuery()) {
          rows.next();
          equal(rows.getLong(1), Long.MIN_VALUE);
          equal(rows.getDouble(2), 0.1);
          equal(Arrays.toString(rows.getBytes(3)), Arrays.toString(bytes));
          equal(rows.getString(4), "Ünï – 😀");
          equal(Arrays.toString((Object[]) rows.getArray(5).getArray()), "[1, null, 3]");
          equal(rows.getObject(6) == null, true);
        }
      }
    }
  }

  private static void batches() throws Exception {
    for (String rewrite : List.of("false", "true")) {
      try (Connection connection = connect("reWriteBatchedInserts=" + rewrite)) {
        run(connection, "DROP TABLE IF EXISTS jdbc_batch", "CREATE TABLE jdbc_batch (n int PRIMARY KEY)");
        try (PreparedStatement insert =
            connection.prepareStatement("INSERT INTO jdbc_batch VALUES (?)")) {
          for (int n = 0; n < 1000; n++) {
            insert.setInt(1, n);
            insert.addBatch();
          }
          equal(insert.executeBatch().length, 1000);
          for (int n = 999; n < 1300; n++) {
            insert.setInt(1, n);
            insert.addBatch();
          }
          fails("23505", insert::executeBatch);
        }
        equal(number(connection, "SELECT count(*) FROM jdbc_batch WHERE n < 1000"), 1000);
      }
    }
  }

  private static void transactions() throws Exception {
    try (Connection connection = connect()) {
      run(connection, "DROP TABLE IF EXISTS jdbc_kept", "CREATE TABLE jdbc_kept (n int)");
      connection.setAutoCommit(false);
      PreparedStatement insert = connection.prepareStatement("INSERT INTO jdbc_kept VALUES (?)");
      for (int n = 1; n <= 4; n++) {
        insert.setInt(1, n);
        insert.executeUpdate();
        Savepoint savepoint = connection.setSavepoint();
        insert.setInt(1, n * 100);
        insert.executeUpdate();
        if (n % 2 == 0) connection.rollback(savepoint);
      }
      connection.commit();
      insert.setInt(1, 1000);
      insert.executeUpdate();
      connection.rollback();
      equal(number(connection, "SELECT sum(n) FROM jdbc_kept"), 1 + 100 + 2 + 3 + 300 + 4);
      connection.rollback();
      fails("22012", () -> number(connection, "SELECT 1/0"));
      fails("25P02", () -> number(connection, "SELECT 1"));
      connection.rollback();
      equal(number(connection, "SELECT 1"), 1);
      connection.commit();
    }
  }

  private static void autosave() throws Exception {
    try (Connection connection = connect("autosave=always")) {
      connection.setAutoCommit(false);
      for (int turn = 0; turn < 5; turn++) {
        equal(number(connection, "SELECT 7"), 7);
        fails("22012", () -> number(connection, "SELECT 1/0"));
        equal(number(connection, "SELECT 8"), 8);
        connection.commit();
      }
    }
  }

  private static void fetchSize() throws Exception {
    try (Connection connection = connect()) {
      connection.setAutoCommit(false);
      for (int size : new int[] {1, 7, 100, 1000}) {
        try (PreparedStatement statement =
            connection.prepareStatement("SELECT n, repeat('x', 50) FROM generate_series(1, ?) AS n")) {
          statement.setFetchSize(size);
          statement.setInt(1, 700);
          try (ResultSet rows = statement.executeQuery()) {
            int seen = 0;
            while (rows.next()) equal(rows.getInt(1), ++seen);
            equal(seen, 700);
          }
        }
      }
      connection.commit();
    }
  }

  private static void copy() throws Exception {
    try (Connection connection = connect()) {
      run(connection, "DROP TABLE IF EXISTS jdbc_copied", "CREATE TABLE jdbc_copied (n int, t text)");
      StringBuilder lines = new StringBuilder();
      for (int n = 0; n < 5000; n++) lines.append(n).append("\tline ").append(n).append('\n');
      CopyManager manager = connection.unwrap(PGConnection.class).getCopyAPI();
      byte[] bytes = lines.toString().getBytes(StandardCharsets.UTF_8);
      equal(manager.copyIn("COPY jdbc_copied FROM STDIN", new ByteArrayInputStream(bytes)), 5000L);
      ByteArrayOutputStream out = new ByteArrayOutputStream();
      manager.copyOut("COPY (SELECT * FROM jdbc_copied ORDER BY n) TO STDOUT", out);
      equal(Arrays.equals(out.toByteArray(), bytes), true);
      byte[] bad = "one\tbad\n".getBytes(StandardCharsets.UTF_8);
      fails("22P02", () -> manager.copyIn("COPY jdbc_copied FROM STDIN", new ByteArrayInputStream(bad)));
      equal(number(connection, "SELECT count(*) FROM jdbc_copied"), 5000);
    }
  }

  private static void cancel() throws Exception {
    try (Connection connection = connect(); Connection other = connect()) {
      try (Statement statement = connection.createStatement()) {
        statement.setQueryTimeout(1);
        fails("57014", () -> statement.execute("SELECT pg_sleep(60)"));
        statement.setQueryTimeout(0);
        equal(number(connection, "SELECT 1"), 1);
        equal(number(other, "SELECT 2"), 2);
      }
    }
  }

  private static void metadata() throws Exception {
    try (Connection connection = connect()) {
      run(
          connection,
          "DROP TABLE IF EXISTS jdbc_described",
          "CREATE TABLE jdbc_described (id serial PRIMARY KEY, name text)");
      List<String> names = new ArrayList<>();
      try (ResultSet rows = connection.getMetaData().getColumns(null, "public", "jdbc_described", null)) {
        while (rows.next()) names.add(rows.getString("COLUMN_NAME"));
      }
      equal(names, List.of("id", "name"));
      String sql = "INSERT INTO jdbc_described (name) VALUES (?)";
      try (PreparedStatement insert =
          connection.prepareStatement(sql, Statement.RETURN_GENERATED_KEYS)) {
        for (int n = 1; n <= 3; n++) {
          insert.setString(1, "n" + n);
          insert.executeUpdate();
          try (ResultSet keys = insert.getGeneratedKeys()) {
            keys.next();
            equal(keys.getInt(1), n);
          }
        }
      }
      try (PreparedStatement statement = connection.prepareStatement("SELECT ?::int8 AS wide")) {
        equal(statement.getParameterMetaData().getParameterTypeName(1), "int8");
        equal(statement.getMetaData().getColumnName(1), "wide");
      }
    }
  }

  private static void simple() throws Exception {
    try (Connection connection = connect("preferQueryMode=simple");
        PreparedStatement statement = connection.prepareStatement("SELECT ?::int * 2")) {
      for (int n = 0; n < 5; n++) {
        statement.setInt(1, n);
        try (ResultSet rows = statement.executeQuery()) {
          rows.next();
          equal(rows.getInt(1), n * 2);
        }
      }
    }
  }

  private static void threads() throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(16);
    List<Future<?>> futures = new ArrayList<>();
    for (int thread = 0; thread < 16; thread++) {
      int who = thread;
      futures.add(pool.submit(() -> {
        try (Connection connection = connect()) {
          connection.setAutoCommit(who % 2 == 0);
          PreparedStatement statement = connection.prepareStatement("SELECT ?::int, ?::text");
          for (int turn = 0; turn < 25; turn++) {
            statement.setInt(1, who);
            statement.setString(2, who + "-" + turn);
            try (ResultSet rows = statement.executeQuery()) {
              rows.next();
              equal(rows.getInt(1), who);
              equal(rows.getString(2), who + "-" + turn);
            }
            if (who % 2 != 0) connection.commit();
          }
        }
        return null;
      }));
    }
    pool.shutdown();
    for (Future<?> future : futures) future.get();
  }
}
